"""Values of a program with an edit and without it: losses, and numbers that it prints."""

from __future__ import annotations

import linecache
from textwrap import dedent

import pytest
import torch

from pytorch_memlab.advice.around_program import Edit
from pytorch_memlab.advice.cause import Basis, Remedy, Results
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.advice.compared_values import Comparison, RecordedValues, Values, compared
from pytorch_memlab.advice.remedy_runs import _keeps_its_word
from pytorch_memlab.advice.trial_records import Result
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings, TrialRequest
from pytorch_memlab.fitting.trial_run import run_all
from pytorch_memlab.render.advice import outcome
from pytorch_memlab.simulation.hardware.presets import find_gpu

PROGRAM = """
    import random, time
    import torch
    from torch.nn import functional as F

    weight = torch.randn(8, 8, device="cuda", requires_grad=True)
    for step in range(3):
        x = F.dropout(torch.randn(4, 8, device="cuda"), 0.5)
        loss = (x @ weight).pow(2).mean()
        loss.backward()
        print(f"step {step}: {loss.item():.3f}, {random.random():.2f}, took {time.time_ns()} ns")
"""


def values(losses=(), printed=(), has_dropout=False):
    return Values(tuple(losses), tuple(printed), has_dropout)


@pytest.mark.parametrize(
    ("first", "again", "edited", "result"),
    [
        (values([1.0, 2.0]), values([1.0, 2.0]), values([1.0, 2.0]), ("loss", 2, 2, 0.0)),
        (values([1.0, 2.0]), values([1.0, 2.0]), values([1.0, 1.5]), ("loss", 1, 2, 0.25)),
        (values([1.0]), values([1.1]), values([1.0]), None),  # it differs from run to run
        (values([1.0]), values([1.0]), values(), None),
        (
            values(printed=["3", "0.25", "17"]),
            values(printed=["3", "0.25", "18"]),  # a time
            values(printed=["3", "0.26", "19"]),  # one in the last digit
            ("printed numbers", 1, 2, 0.0),
        ),
        (values(printed=["1"]), values(printed=["1"]), values(printed=["1", "2"]), None),
        (
            values([1.0], ["5"]),
            values([1.0], ["5"]),
            values([1.0], ["nan"]),
            ("loss and printed numbers", 1, 2, 1.0),
        ),
    ],
)
def test_values_are_compared_where_two_runs_agree(first, again, edited, result):
    comparison = compared(first, again, edited)
    expected = None if result is None else Comparison(*result, is_without_dropout=False)
    assert comparison == expected


def run_with_values(path, *edits):
    changes = [EditedSource(edits)] if edits else []
    requests = [
        TrialRequest(
            ProgramTarget(str(path)),
            find_gpu("a100"),
            Settings(),
            (*those, RecordedValues()),
            computes=True,
        )
        for those in ([], [], changes)
    ]
    trials = dict(run_all(requests))
    assert [trials[number].error for number in range(3)] == ["", "", ""]
    return [trials[number].findings[-1] for number in range(3)]


def test_an_edit_that_changes_the_model_is_seen(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(dedent(PROGRAM))
    linecache.checkcache(str(path))
    first, again, unchanged = run_with_values(path)
    assert len(first.losses) == 3
    assert first.has_dropout
    # Steps and losses and random numbers agree; times do not.
    same = Comparison("loss and printed numbers", 12, 12, 0.0, is_without_dropout=True)
    assert compared(first, again, unchanged) == same

    line = PROGRAM.splitlines().index("        loss = (x @ weight).pow(2).mean()") + 1
    other = Edit(str(path), line, line, ("    loss = (x @ weight).pow(2).sum()",))
    *_, edited = run_with_values(path, other)
    found = compared(first, again, edited)
    assert found.difference == pytest.approx(31 / 32)
    assert not found.is_same_model(Results.UNKNOWN.tolerance)


def test_values_are_read_without_a_gpu_too(capsys):
    recorded = RecordedValues()
    with recorded.applied():
        weight = torch.ones(2, requires_grad=True)
        torch.nn.functional.dropout(weight).sum().backward()
        query = torch.ones(1, 2, 4)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, None, 0.9)
        print("lr 1e-3 on cuda:0, tensor(2.5)")
    assert recorded.finding() == Values((2.0,), ("1e-3", "2.5"), True)
    assert capsys.readouterr().out == "lr 1e-3 on cuda:0, tensor(2.5)\n"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((None, 0.9, True), {}),
        ((None, 0.9), {"is_causal": True}),
        ((), {"dropout_p": 0.9, "is_causal": True}),
    ],
)
def test_attention_without_dropout_keeps_its_other_arguments(args, kwargs):
    query, value = torch.zeros(1, 2, 1), torch.tensor([[[1.0], [3.0]]])
    recorded = RecordedValues()
    with recorded.applied():
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, query, value, *args, **kwargs
        )
    assert attended.tolist() == [[[1.0], [2.0]]]  # causal, and nothing is dropped
    assert recorded.finding() == Values((), (), True)


def result(*comparison, is_without_dropout=False):
    found = Comparison(*comparison, is_without_dropout=is_without_dropout) if comparison else None
    return Result(2 * 2**20, 2**20, True, True, found)


def remedy(results):
    return Remedy("cause", 1, "why", ("code",), Basis.COMPUTED, results=results)


@pytest.mark.parametrize(
    ("results", "comparison", "words"),
    [
        (Results.SAME, result(), "same results by its formula"),
        (Results.UNKNOWN, result(), ""),
        (Results.SAME, result("loss", 6, 6, 0.0), "loss unchanged (6 of 6 values)"),
        (
            Results.BFLOAT16,
            result("loss", 0, 6, 3e-4, is_without_dropout=True),
            "loss differs by 3e-4 (bf16, without dropout)",
        ),
        (
            Results.ROUNDING,
            result("loss", 2, 6, 2e-7),
            "loss differs by 2e-7 (2 of 6 values are equal)",
        ),
        (
            Results.UNKNOWN,
            result("printed numbers", 2, 6, 0.5),
            "printed numbers differ: not the same model (2 of 6 values are equal)",
        ),
        (
            Results.ROUNDING,
            result("printed numbers", 2, 3, 0.0),
            "printed numbers differ in the last digit (2 of 3 values are equal)",
        ),
    ],
)
def test_the_outcome_says_what_is_known_of_results(results, comparison, words):
    peaks = "tried: peak 2.0 MiB -> 1.0 MiB, runs to its end"
    assert outcome(remedy(results), comparison) == ([peaks, words] if words else [peaks])


def test_a_remedy_that_promises_the_same_model_keeps_its_word_or_is_dropped():
    other = result("loss", 0, 6, 0.5)
    assert not _keeps_its_word(remedy(Results.SAME), other)
    assert not _keeps_its_word(remedy(Results.BFLOAT16), other)
    assert _keeps_its_word(remedy(Results.UNKNOWN), other)  # its line says so
    assert _keeps_its_word(remedy(Results.BFLOAT16), result("loss", 0, 6, 0.01))
    assert _keeps_its_word(remedy(Results.SAME), result())
