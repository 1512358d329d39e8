"""``run`` names next steps at its end in a terminal, and nowhere else."""

from __future__ import annotations

import sys

import pytest
from support.terminal import Terminal

from pytorch_memlab.cli.main import main

FIRST = "-o report.html writes a page, -o run.memlab.json keeps everything for pytorch-memlab show"


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([], FIRST),
        (["a.txt"], FIRST),
        (["a.html"], "open a.html in a browser"),
        (["b.pickle"], "pytorch-memlab peak b.pickle shows what holds the memory at the peak"),
        (
            ["c.memlab.json"],
            "pytorch-memlab show c.memlab.json, or pytorch-memlab top c.memlab.json",
        ),
    ],
)
def test_in_a_terminal(outputs, said, write, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := Terminal())

    main(["run", *(f"-o{path}" for path in outputs), write("import torch\ntorch.ones(1).cuda()\n")])

    assert shown.getvalue().splitlines()[-1] == f"pytorch-memlab: next: {said}"


def test_not_in_a_pipe(write, capsys):
    main(["run", write("import torch\ntorch.ones(1).cuda()\n")])

    assert "next:" not in capsys.readouterr().err


def test_not_after_an_error(write, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := Terminal())

    with pytest.raises(ZeroDivisionError):
        main(["run", write("import torch\ntorch.ones(1).cuda()\n1 / 0\n")])

    assert "next:" not in shown.getvalue()


READS = """
import torch
length = int(torch.rand(10_000, device="cuda").sum().item())
torch.ones(4, device="cuda").split([length])
"""


@pytest.mark.knows_simulation("values that a dry run assumes")
def test_an_error_in_a_dry_run_may_come_from_values_that_were_assumed(write, capsys):
    with pytest.raises(RuntimeError, match="split_with_sizes expects"):
        main(["run", "--dry-run", write(READS)])

    assert capsys.readouterr().err.splitlines()[-1] == (
        "pytorch-memlab: the program failed after it read values that a dry run only assumes (the "
        "notes say where): if the error comes from them, run without --dry-run"
    )


@pytest.mark.parametrize(
    ("options", "program"),
    [
        (["--dry-run"], "import torch\ntorch.ones(1).cuda()\n1 / 0\n"),
        ([], READS),
        (["--dry-run", "--gpu", "4MiB"], READS.replace("torch.ones(4", "torch.ones(2**20")),
    ],
    ids=["nothing was read", "with values", "out of memory"],
)
def test_no_other_error_does(options, program, write, capsys):
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        main(["run", *options, write(program)])

    assert "assumes" not in capsys.readouterr().err
