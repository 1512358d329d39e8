"""PyTorch's samples of its operators, simulated beside a CPU; ``make opinfo`` runs them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.made_up_operators import Operator

from benchmarks import opinfo
from benchmarks.opinfo import Verdict

SOME = (
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "index_reduce",
    "take",
    "cummax",
    "kthvalue",
    "clamp",
    "median",
    "trace",
    "arange",
    "empty_like",
    "multinomial",
    "nn.functional.binary_cross_entropy_with_logits",
    "nn.functional.scaled_dot_product_attention",
)


@pytest.mark.filterwarnings("ignore")
def test_samples_of_some_operators():
    chosen = [op for op in opinfo.operators() if op.name in SOME]
    assert {op.name for op in chosen} == set(SOME)
    found = [finding for op in chosen for finding in opinfo.findings(op)]
    good = {Verdict.EQUAL, Verdict.SAME_SHAPES}
    assert [str(finding) for finding in found if finding.verdict not in good] == []
    assert {finding.name for finding in found if finding.verdict is Verdict.EQUAL} >= {
        "index_reduce.amax", "index_reduce.amin", "multinomial", "median", "arange"
    }  # fmt: skip
    assert len(found) > 150
    torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic  # still writable


def verdict(function: Any, name: str = "own") -> tuple[Verdict, str]:
    [finding] = opinfo.findings(Operator(function, name))
    return finding.verdict, finding.detail


def only_on_gpu(x: torch.Tensor, act: Any) -> Any:
    return act() if x.is_cuda else x * 2


def refuse() -> None:
    raise ValueError("no such thing")


def external_stream() -> Any:
    return torch.cuda.ExternalStream(8)


def detached(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach() if x.is_cuda else x * x


@pytest.mark.parametrize(
    ("function", "expected", "words"),
    [
        (lambda x: x * 2, Verdict.EQUAL, ""),
        (lambda x: x * (2 + x.is_cuda), Verdict.DIFFERS, "output 0: Tensor-likes are not close"),
        (detached, Verdict.DIFFERS, "gradient 0: Tensor-likes are not close"),
        (lambda x: x.cpu() * 2, Verdict.DIFFERS, "output 0: a tensor on cpu instead of"),
        (lambda x: (x * 2).view(2, -1) if x.is_cuda else x * 2, Verdict.DIFFERS, "[2, 2] instead"),
        (lambda x: [x] * (1 + x.is_cuda), Verdict.DIFFERS, "3 results instead of 2"),
        (lambda x: x.shape if x.is_cpu else (5,), Verdict.DIFFERS, "output 0: 5 instead of 4"),
        (lambda x: F.dropout(x), Verdict.EQUAL, ""),  # one draw from one seed
        (lambda x: (torch.rand_like(x), torch.rand_like(x)), Verdict.SAME_SHAPES, ""),
        (lambda x: torch.rand(3 + x.is_cuda, device=x.device), Verdict.DIFFERS, "[4] instead"),
        (lambda x: only_on_gpu(x, external_stream), Verdict.REFUSED, "torch.cuda.ExternalStream"),
        (lambda x: only_on_gpu(x, refuse), Verdict.RAISED, "ValueError: no such thing"),
        (lambda x: x.cuda(), Verdict.NO_REFERENCE, ""),
    ],
)
def test_what_differs_is_found(function, expected, words):
    found, detail = verdict(function)
    assert found is expected
    assert words in detail
    assert bool(detail) == (expected not in (Verdict.EQUAL, Verdict.SAME_SHAPES))


def test_memory_that_nobody_wrote_is_compared_by_its_shape():
    def written_by_the_device(x):
        return torch.full_like(x, 1.0 + x.is_cuda)

    assert verdict(written_by_the_device)[0] is Verdict.DIFFERS
    assert verdict(written_by_the_device, "empty_like")[0] is Verdict.SAME_SHAPES


def test_the_command_counts_and_fails_where_one_differs(monkeypatch, capsys):
    good, bad = Operator(lambda x: x * 2, "good"), Operator(lambda x: x * (2 + x.is_cuda), "bad")
    monkeypatch.setattr(opinfo, "operators", lambda: [good, bad])
    assert opinfo.main(["good"]) is None
    assert capsys.readouterr().out.startswith("1 equal, 0 random, of equal shapes, 0 differ, ")
    assert opinfo.main([]) == "1 of 2 samples differ or raise"
    assert "bad, sample 0: differ: output 0: Tensor-likes" in capsys.readouterr().out
    assert opinfo.main(["mull"]) == "no such operators in op_db: mull"
