"""PyTorch's samples of its operators take the same memory with and without values.

``make opinfo`` runs them all.
"""

from __future__ import annotations

import pytest
import torch
from support.made_up_operators import Operator

from benchmarks import opinfo, opinfo_memory
from benchmarks.opinfo_memory import Values, Verdict
from pytorch_memlab.simulation.machine import active

SOME = (
    "cov",
    "geqrf",
    "istft",
    "linalg.lstsq",
    "linalg.solve",
    "masked_select",
    "nn.functional.embedding_bag",
    "nn.functional.ctc_loss",
    "nonzero_static",
)


@pytest.mark.filterwarnings("ignore")
def test_samples_of_some_operators():
    chosen = [op for op in opinfo.operators() if op.name in SOME]
    assert {op.name for op in chosen} == {*SOME}
    found = [
        finding for op in chosen for finding in opinfo_memory.findings(op, opinfo.main_dtype(op))
    ]
    good = {Verdict.EQUAL, Verdict.MARKED}
    assert [str(finding) for finding in found if finding.verdict not in good] == []
    assert {finding.name for finding in found if finding.verdict is Verdict.MARKED} == {
        *("masked_select", "nn.functional.ctc_loss")
    }
    assert len(found) > 300


def verdicts(function, dtype=torch.float32):
    found = list(opinfo_memory.findings(Operator(function), dtype))
    assert [finding.values for finding in found] == [Values.NONE, Values.ZEROS]
    (verdict,) = {finding.verdict for finding in found}
    return verdict, found[0].detail


def is_dry():
    return active.machine.is_dry_run


def refuse(only_dry):
    if is_dry() or not only_dry:
        raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("function", "expected", "detail"),
    [
        (lambda x: x * 2, Verdict.EQUAL, ""),
        (
            lambda x: torch.ones(4 + is_dry(), device="cuda"),
            Verdict.DIFFERS,
            "event 0: +20 in aten.ones.default instead of +16 in aten.ones.default",
        ),
        (
            lambda x: None if is_dry() else x.detach().clone(),
            Verdict.DIFFERS,
            "event 0: none instead of +16 in aten.clone.default",
        ),
        (
            lambda x: (x.exp(), x.sum()) if is_dry() else (x.sum(), x.exp()),
            Verdict.DIFFERS,
            "event 0: +16 in aten.exp.default instead of +4 in aten.sum.default",
        ),
        (
            lambda x: (x * 2).view(2, 2) if is_dry() else (x * 2).view(2, 2).t(),
            Verdict.DIFFERS,
            "('output 0', torch.float32, (2, 2), device(type='cuda', index=0), (2, 1)) instead of",
        ),
        (lambda x: x[x > 2], Verdict.MARKED, ""),
        (lambda x: refuse(only_dry=True), Verdict.RAISED, "ValueError: no such thing"),
        (lambda x: refuse(only_dry=False), Verdict.EQUAL, ""),
        (lambda x: x.cuda_graph, Verdict.EQUAL, ""),
        (lambda x: x.frobnicated if not is_dry() else x, Verdict.NO_REFERENCE, "AttributeError"),
    ],
)
def test_what_differs_is_found(function, expected, detail):
    verdict, found = verdicts(function)
    assert verdict is expected
    assert found.startswith(detail)
    assert bool(found) == bool(detail)


def test_the_command_counts_both_dry_runs_and_fails_where_one_differs(monkeypatch, capsys):
    good = Operator(lambda x: x * 2, "good")
    bad = Operator(lambda x: torch.ones(1 + is_dry(), device="cuda"), "bad")
    monkeypatch.setattr(opinfo, "operators", lambda: [good, bad])
    assert opinfo.main(["--memory", "go*"]) is None
    assert capsys.readouterr().out.startswith("2 equal, 0 differ, marked as assumed, 0 differ, ")
    assert opinfo.main(["--memory"]) == "2 of 4 samples differ or raise"
    lines = capsys.readouterr().out.splitlines()
    words = "event 0: +8 in aten.ones.default instead of +4 in aten.ones.default"
    assert lines[0] == f"bad, float32, sample 0, no values: differ: {words}"
    assert lines[1] == f"bad, float32, sample 0, zeros for values: differ: {words}"
    assert opinfo.main(["--memory", "--dtype", "int32", "good"]) is None
    assert capsys.readouterr().out.startswith("2 equal, ")
    assert opinfo.main(["--memory", "--dtype", "float64", "good"]) is None
    assert capsys.readouterr().out.startswith("0 equal, ")
    with pytest.raises(SystemExit):
        opinfo.main(["--memory", "--dtype", "float31"])
