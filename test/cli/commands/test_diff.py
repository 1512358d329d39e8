"""``pytorch-memlab diff``: what grew and what shrank from one profile to another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.python_process import run_python
from support.sample_reports import CUDA1, MIB, entry

from pytorch_memlab import load
from pytorch_memlab.cli.main import main
from pytorch_memlab.profiles.differences import compare
from pytorch_memlab.saved import profile_file

ROOT = Path(__file__).parents[3]

BEFORE = """\
import torch


def forward(x):
    return torch.cat([x, x])


def unused():
    pass


kept = forward(torch.zeros(1 << 18, device="cuda"))
spare = torch.zeros(1 << 20, device="cuda")
"""

AFTER = """\
import torch

BATCH = 4


def forward_all(x):
    return torch.cat([x, x])


more = torch.zeros(1 << 19, device="cuda")
kept = forward_all(torch.zeros(BATCH << 18, device="cuda"))
"""


@pytest.fixture
def files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[str, str]:
    """Profiles of a program before and after an edit."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.json", BEFORE), ("b.json", AFTER)):
        Path("train.py").write_text(text)
        main(["run", "--gpu", "24GiB", "-o", name, "train.py"])
    capsys.readouterr()
    return "a.json", "b.json"


def without_days(text: str) -> list[str]:
    return [line.partition(", recorded on ")[0] for line in text.splitlines()]


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_the_whole_comparison(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *files]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert without_days(out) == WHOLE.splitlines()
    assert all(len(line) <= 80 for line in out.splitlines())


WHOLE = """\
a.json: train.py
b.json: train.py

cuda:0                 before       after       change
  peak active         6.0 MiB    14.0 MiB     +8.0 MiB  +133.3%
  peak allocated      6.0 MiB    14.0 MiB     +8.0 MiB  +133.3%
  peak reserved      22.0 MiB    20.0 MiB     -2.0 MiB    -9.1%

lines that add more or less themselves, without the functions that they call:
   +6.0 MiB train.py:7  forward_all (was forward:5)
            2.0 MiB -> 8.0 MiB  return torch.cat([x, x])
   -2.0 MiB train.py:10  <module> (edited, was line 13)
            4.0 MiB -> 2.0 MiB  more = torch.zeros(1 << 19, device="cuda")

lines whose peak is higher or lower:
  +11.0 MiB train.py:7  forward_all (was forward:5)
            3.0 MiB -> 14.0 MiB  return torch.cat([x, x])
   +5.0 MiB train.py:6  forward_all (was forward:4)
            1.0 MiB -> 6.0 MiB  def forward_all(x):
   -4.0 MiB train.py:10  <module> (edited, was line 13)
            6.0 MiB -> 2.0 MiB  more = torch.zeros(1 << 19, device="cuda")

held at the peak of cuda:0, by category:
   +4.0 MiB 6.0 MiB -> 10.0 MiB      inputs and other tensors
   +4.0 MiB 0 B -> 4.0 MiB           temporaries

held at the peak of cuda:0, by module:
   +8.0 MiB 6.0 MiB -> 14.0 MiB      outside of modules, or not known

held at the peak of cuda:0, by line:
   +6.0 MiB 2.0 MiB -> 8.0 MiB       train.py:7
   +4.0 MiB 0 B -> 4.0 MiB           train.py:11
   -2.0 MiB 4.0 MiB -> 2.0 MiB       train.py:10
"""


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_files_have_the_text_and_the_page(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "-o", "d.txt", "-o", "d.html", "--fail-over", "5%", *files]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "comparison written to d.txt",
        "comparison written to d.html",
        "pytorch-memlab diff: cuda:0: the active peak grew by 8.0 MiB (+133.3%), more than 5%",
    ]
    assert without_days(Path("d.txt").read_text()) == WHOLE.splitlines()
    page = Path("d.html").read_text()
    assert "<h1>two runs of train.py: what changed</h1>" in page
    assert "<td>active</td>" in page


def test_a_file_of_another_kind_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "-o", str(tmp_path / "d.json"), "missing.json", "gone.json"]) == 2
    assert "cannot tell the format of" in capsys.readouterr().err


def test_private_pages_have_no_arguments_and_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hidden").mkdir()
    script = tmp_path / "hidden" / "train.py"
    script.write_text(BEFORE)
    for name in ("a.json", "b.json"):
        main(["run", "--gpu", "24GiB", "-o", name, str(script), "--token", "s3cret"])
    monkeypatch.chdir(tmp_path / "hidden")
    arguments = ["../a.json", "../b.json"]
    assert main(["diff", "-o", "open.html", *arguments]) == 0
    assert main(["diff", "--private", "-o", "private.html", *arguments]) == 0
    assert "--token" in Path("open.html").read_text()
    private = Path("private.html").read_text()
    assert "--token" not in private
    assert str(tmp_path) not in private


def test_equal_profiles_have_no_differences(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("copy.json").write_bytes(Path("a.json").read_bytes())
    assert main(["diff", "--fail-over", "0%", "a.json", "copy.json"]) == 0
    out = capsys.readouterr().out
    assert "every line adds as much as before\n\nthe peak of every line is as it was\n" in out


@pytest.mark.parametrize(
    ("limit", "status"),
    [("99%", 1), ("1MiB", 1), ("0", 1), ("500%", 0), ("1GiB", 0), ("100.1 %", 1)],
)
def test_too_much_growth_fails(
    limit: str, status: int, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--fail-over", limit, *files]) == status
    told = f"pytorch-memlab diff: cuda:0: the active peak grew by GROWTH, more than {limit}\n"
    assert capsys.readouterr().err == (told.replace("GROWTH", GROWTH) if status else "")
    assert main(["diff", "--fail-over", limit, *reversed(files)]) == 0


GROWTH = "8.0 MiB (+133.3%)"


def test_the_exit_code_of_the_process(files: tuple[str, str], tmp_path: Path) -> None:
    command = ["-m", "pytorch_memlab", "diff", "--fail-over", "5%", *files]
    done = run_python(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("a.json: train.py, recorded on ")
    assert done.stderr.count("\n") == 1


def test_what_makes_profiles_hard_to_compare_is_said(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    profile = load("b.json").recorded()
    run = replace(
        profile.runs[0],
        program="/x/eval.py",
        is_dry_run=True,
        versions={**profile.runs[0].versions, "torch": "3.0"},
    )
    (device,) = profile.devices
    info = replace(device.device, description="NVIDIA T4", simulated=False)
    entries = tuple(replace(one, device=info) for one in profile.entries)
    other = replace(profile, runs=(run,), devices=(replace(device, device=info),), entries=entries)
    Path("c.json").write_text(profile_file.text_of(other))
    assert main(["diff", "a.json", "c.json"]) == 0
    torch_version = profile.runs[0].versions["torch"]
    assert [line for line in capsys.readouterr().out.splitlines() if "warning" in line] == [
        "warning: these are different programs: functions are matched by their names",
        "warning: one of the runs simulated shapes only",
        "warning: the devices differ: Simulated GPU (24.00 GiB), then NVIDIA T4",
        f"warning: the versions of torch differ: {torch_version}, then 3.0",
    ]


def test_one_device_of_each_profile_is_compared_under_any_name(files: tuple[str, str]) -> None:
    before = load("a.json").recorded()
    (device,) = before.devices
    after = replace(
        before,
        devices=(replace(device, device=CUDA1, peak_active=device.peak_active + 1),),
        entries=tuple(replace(one, device=CUDA1) for one in before.entries),
        calls=(),
    )
    found = compare(before, after)
    assert [(one.name, one.active.growth) for one in found.devices] == [("cuda:1", 1)]
    assert found.peaks() == []


def test_devices_that_only_one_profile_has(files: tuple[str, str]) -> None:
    before = load("a.json").recorded()
    (device,) = before.devices
    second = replace(device, device=replace(CUDA1, name="cuda:1"), peak_active=MIB)
    after = replace(
        before,
        devices=(device, second),
        entries=(*before.entries, entry(0, 5, MIB, device=second.device, delta=MIB)),
    )
    found = compare(before, after)
    assert [(one.name, one.active.growth) for one in found.devices] == [
        ("cuda:0", 0),
        ("cuda:1", MIB),
    ]
    assert [(one.device, one.own.growth, one.is_new) for one in found.own()] == [
        ("cuda:1", MIB, True)
    ]


NO_SIZE = "--fail-over is a share such as 5% or a size such as 64MiB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-over", "much", "a.json", "b.json"], "--fail-over is a share such as 5% or a"),
        (["--fail-over", "5", "a.json", "b.json"], f"{NO_SIZE}, not '5' (did you mean 5%, 5MiB"),
        (["--fail-over=-5MiB", "a.json", "b.json"], "--fail-over is a share such as 5% or a"),
        (["a.json", "missing.json"], "cannot read missing.json: No such file or directory"),
        (["a.json", "old.json"], "old.json is JSON, but no profile of pytorch_memlab"),
        (["trace.pickle", "a.json"], "trace.pickle is a pickle, such as a memory snapshot"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    arguments: list[str],
    message: str,
    files: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("old.json").write_text('{"format": 1, "tables": []}')
    Path("trace.pickle").write_bytes(b"\x80\x04.")
    assert main(["diff", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pytorch-memlab diff: error: {message}")
    assert err.count("\n") == 1


def test_a_holder_in_a_long_file_keeps_its_line_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = Path(f"modeling_{'very_' * 8}large.py")
    for name, size in (("a.json", 20), ("b.json", 21)):
        program.write_text(f'import torch\nkept = torch.zeros(1 << {size}, device="cuda")\n')
        main(["run", "--gpu", "24GiB", "-o", name, str(program)])
    capsys.readouterr()
    assert main(["diff", "a.json", "b.json"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"   +4.0 MiB 4.0 MiB -> 8.0 MiB       modeling_{'very_' * 6}v…:2"
