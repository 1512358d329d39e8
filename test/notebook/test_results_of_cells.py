"""Tensors that ended a cell are kept by IPython: reports say so, and what frees them does."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import MemReporter


@pytest.fixture
def full(run, shell, capsys):
    """A GPU of 64 MiB with two results of 20 MiB on it."""
    shell.user_ns.update(torch=torch, MemReporter=MemReporter)
    run("%load_ext pytorch_memlab\n%simulate 64MiB")
    run("torch.empty(20 << 20, dtype=torch.uint8, device='cuda')[:1]")
    run("_ + 1;  # kept by nothing")
    run("torch.empty(20 << 20, dtype=torch.uint8, device='cuda')[:2], 3")
    capsys.readouterr()
    yield shell
    run("%simulate off")


@pytest.mark.knows_simulation(
    "names of holders need the requests, which a simulation records by itself"
)
def test_an_oom_report_names_them_and_what_frees_them(full, run, capsys):
    run("more = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')")
    report = capsys.readouterr().err
    assert "  (Out[2])\n" in report
    assert "  (Out[4][0])\n" in report
    lines = [line.strip() for line in report.splitlines()]
    first = lines.index("1. IPython keeps 40.0 MiB as results of cells: Out[2], Out[4]")
    code = lines[first + 1 : first + 3]
    assert code[0] == "%reset -f out"
    assert torch.cuda.memory_allocated() == 40 << 20
    run("\n".join(code))
    run("import sys; sys.last_value = sys.last_traceback = sys.last_exc = None")
    assert torch.cuda.memory_allocated() == 0


def test_the_reporter_names_them(full, run, capsys):
    run("MemReporter().report(details=True)")
    report = capsys.readouterr().out
    assert "  Out[2] " in report
    assert "  Out[4][0] " in report
    note = "IPython keeps 40.0 MiB as results of cells: %reset -f out frees all but _, __, ___\n"
    assert note in report


def test_ipython_on_pythonpath_is_no_program_of_the_user(full, run, shell, monkeypatch):
    from pytorch_memlab.reporter import names

    monkeypatch.setattr(names, "_LIBRARIES", ())
    run("kept = MemReporter().snapshot()")
    rows = {row.name for row in shell.user_ns["kept"].on(torch.device("cuda", 0)).rows}
    assert {"Out[2]", "Out[4][0]"} <= rows
