"""``PYTORCH_MEMLAB=0`` turns every profiler off, ``=1`` leaves it on, all else is a mistake."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import LineProfiler, profile, profile_every
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError

SCRIPT = """\
import sys, torch

@profile
def work():
    return torch.ones(2)

work()
print(torch.cuda.is_available(), sys.argv)
"""


def test_run_runs_the_program_plainly(write, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTORCH_MEMLAB", "0")

    code = main(["run", "--gpu", "t4", "-o", "out.txt", write(SCRIPT), "--epochs", "1"])

    assert code == 0
    assert capsys.readouterr() == (
        f"{torch.cuda.is_available()} ['script.py', '--epochs', '1']\n",
        (
            "pytorch-memlab: PYTORCH_MEMLAB=0 turns profiling off: the program runs without a"
            " profiler and without a simulation\n"
        ),
    )
    assert not (tmp_path / "out.txt").exists()


def test_on_is_as_without_it(write, capsys, monkeypatch):
    monkeypatch.setenv("PYTORCH_MEMLAB", "1")

    main(["run", "--gpu", "t4", "-c", "hits", write(SCRIPT)])

    assert "## work\n" in capsys.readouterr().out


def work():
    return torch.ones(2)


def test_profilers_and_decorators_measure_nothing(monkeypatch, capsys):
    monkeypatch.setenv("PYTORCH_MEMLAB", "0")

    with LineProfiler(work) as prof:
        work()
    prof.print_stats()

    assert "PYTORCH_MEMLAB=0 turns profiling off\n" in capsys.readouterr().out
    assert repr(prof) == "<LineProfiler of work: 0 lines recorded, off>"
    assert profile(work) is work
    assert profile_every(2)(work) is work


@pytest.mark.parametrize("value", ["yes", "2", "off"])
def test_another_value_is_a_mistake(value, write, capsys, monkeypatch):
    monkeypatch.setenv("PYTORCH_MEMLAB", value)

    assert main(["run", write("pass")]) == 2
    assert capsys.readouterr().err == (
        f"pytorch-memlab run: error: PYTORCH_MEMLAB is 0 (off) or 1 (on), not '{value}'\n"
    )
    with pytest.raises(UsageError, match="PYTORCH_MEMLAB is 0"):
        profile(work)
