"""Options of %mlrun: those of 0.3, their spellings with dashes, and ``PYTORCH_MEMLAB=0``."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab.line_profiler.columns import DEFAULT_COLUMNS
from pytorch_memlab.notebook.magics import end_everything


@pytest.fixture
def cell(shell, run):
    """Runs a function under %%mlrun with options; gives what the magic returned."""
    run("%load_ext pytorch_memlab")
    shell.user_ns["torch"] = torch
    yield lambda options: run(f"%%mlrun {options}\ndef f():\n    return 1\nf()\n").result
    end_everything()


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ("-c hits", (*DEFAULT_COLUMNS, "hits")),
        ("--column hits", (*DEFAULT_COLUMNS, "hits")),
        ("-D -c hits", ("hits",)),
        ("--no_default_columns -c hits", ("hits",)),
        ("--no-default-columns -c hits", ("hits",)),
        ("--columns hits,delta", ("hits", "delta")),
        ("--columns hits --columns delta", ("hits", "delta")),
        ("--columns hits -c delta", ("hits", "delta")),
    ],
)
def test_columns(options, columns, cell):
    assert cell(options).report.columns == columns


@pytest.mark.parametrize("option", ["-T", "--output", "--dump-profile"])
def test_spellings_of_the_file(option, cell, tmp_path):
    assert "## f\n" in f"{cell(f'{option} {tmp_path}/out.txt')}\n"
    assert "## f\n" in (tmp_path / "out.txt").read_text()


@pytest.mark.parametrize("ending", ["html", "json"])
def test_a_private_file_has_no_folder(ending, run, shell, cell, tmp_path, monkeypatch):
    folder = tmp_path / "telling-client"
    folder.mkdir()
    (folder / "private_cell.py").write_text(
        "import torch\ndef work():\n    return torch.ones(1 << 18, device='cuda').sum().item()\n"
    )
    monkeypatch.syspath_prepend(folder)
    run("import private_cell")
    for options, is_open in (("", True), ("--private", False)):
        name = tmp_path / f"out.{ending}"
        run(f"%mlrun {options} --simulate t4 -T {name} -f private_cell.work private_cell.work()")
        text = name.read_text()
        assert "private_cell.py" in text
        assert ("telling-client" in text) is is_open
        assert is_open or str(tmp_path) not in text
    assert run("%mlrun --private -f f f()").error_in_exec is not None


@pytest.mark.parametrize("option", ["--count", "--num-gpus"])
def test_spellings_of_the_number_of_gpus(option, run, shell, cell, capsys):
    run(f"%%mlrun --simulate t4 {option} 3\nprint(torch.cuda.device_count())\n")

    assert capsys.readouterr().out.startswith("3\n")


def test_switched_off_the_magics_run_the_code_and_nothing_else(
    shell, run, cell, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTORCH_MEMLAB", "0")
    capsys.readouterr()

    assert cell(f"--simulate t4 -T {tmp_path}/out.txt") is None
    assert shell.user_ns["f"]() == 1
    run("%simulate t4")
    assert run("%imu_start").result == "PYTORCH_MEMLAB=0 turns profiling off"

    assert capsys.readouterr().out == (
        "PYTORCH_MEMLAB=0 turns profiling off: nothing is simulated\n"
        "Out[4]: 'PYTORCH_MEMLAB=0 turns profiling off'\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert not torch.cuda.is_available()
