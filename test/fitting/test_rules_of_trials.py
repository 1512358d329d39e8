"""Rules of trials, each by itself and in this process: what is tried, kept, told and followed."""

from __future__ import annotations

import linecache
import math
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.fitting.notebook_program import CodeCell, _run
from pytorch_memlab.fitting.pipeline_changes import MicroBatches, changes_for
from pytorch_memlab.fitting.pipeline_facts import PipelineFacts
from pytorch_memlab.fitting.rank_classes import RankSearch, TriedOnRanks
from pytorch_memlab.fitting.settled import Repeated
from pytorch_memlab.fitting.trial_run import _Run
from pytorch_memlab.fitting.used_tensors import used_tensors
from pytorch_memlab.history.refused_peak import refused_peak

MIB = 2**20

# Pipelines


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (
            PipelineFacts("ScheduleGPipe", 4, (0,), 4, keeps_unsharded=True),
            [
                "Schedule1F1B in place of ScheduleGPipe",
                "8 micro-batches in place of 4",
                "reshard_after_forward=True",
            ],
        ),
        (PipelineFacts("Schedule1F1B", 6, (1,), 2), ["12 micro-batches in place of 6"]),
        (PipelineFacts(), []),
    ],
)
def test_a_pipeline_is_tried_with_what_may_lower_its_memory(facts, names):
    assert [change.name for change in changes_for(facts)] == names


def test_a_schedule_is_made_with_the_other_number_of_micro_batches():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stage = SimpleNamespace(
        is_first=True,
        is_last=True,
        num_stages=1,
        stage_index=0,
        device="cpu",
        group_size=1,
        group_rank=0,
        has_backward=True,
    )
    with MicroBatches(4, 8).applied():
        assert schedules.ScheduleGPipe(stage, 4)._n_microbatches == 8
        assert schedules.ScheduleGPipe(stage, n_microbatches=4)._n_microbatches == 8
    assert schedules.ScheduleGPipe(stage, 4)._n_microbatches == 4


def test_a_change_that_fails_on_a_rank_is_told_last_and_the_next_ones_are_tried():
    facts = PipelineFacts("ScheduleGPipe", 4, (0,), 4, keeps_unsharded=True)

    def judged(rank: int, peak: int, *, failed: bool) -> Any:
        trial = SimpleNamespace(failed=failed)
        return SimpleNamespace(rank=rank, verdict=SimpleNamespace(trial=trial, reserved_peak=peak))

    peaks = {"Schedule1F1B": math.nan, "8 micro-batches": 3 * MIB, "reshard": 2 * MIB}

    def run_beside(_ranks: object, changes: list[Any]) -> list[Any]:
        [name] = [name for name in peaks if changes[0].name.startswith(name)]
        failed = math.isnan(peaks[name])
        return [
            judged(0, MIB, failed=False),
            judged(1, int(0 if failed else peaks[name]), failed=failed),
        ]

    search: Any = SimpleNamespace(
        fullest=SimpleNamespace(shown=SimpleNamespace(facts=facts)),
        _fullest_line=lambda _fullest: [0, 1],
        _run_beside=run_beside,
        tried=[],
    )
    RankSearch._try(search)
    assert search.tried == [
        TriedOnRanks("reshard_after_forward=True", 2 * MIB, 1),
        TriedOnRanks("8 micro-batches in place of 4", 3 * MIB, 1),
        TriedOnRanks("Schedule1F1B in place of ScheduleGPipe", None),
    ]


def test_a_rank_without_a_pipeline_holds_no_micro_batch():
    assert PipelineFacts() == PipelineFacts("", 0, (), 0, keeps_unsharded=False)


# Steps and cells


def test_all_that_ended_early_is_told_with_what_did_not_run():
    first = Repeated((1,), None)
    run: Any = SimpleNamespace(
        _repeated=[
            (first, None),
            (Repeated((2,), 10), SimpleNamespace(steps=4, number=3)),
        ],
        _loops=SimpleNamespace(unsettled=[SimpleNamespace(ends=[5, 6], total=7, number=4)]),
    )
    assert list(_Run._all_repeated(run)) == [
        first,
        Repeated((2,), 10, skipped=6, nest=3),
        Repeated((5, 6), 7, are_steps=False, skipped=5, nest=4),
    ]


@pytest.mark.parametrize(
    ("text", "keeps_result", "kept"),
    [("x = 3\nx + 4", True, {7: 7}), ("3", False, {}), ("x = 3", True, {}), ("None", True, {})],
)
def test_the_value_of_the_last_line_of_a_cell_is_that_of_out(text, keeps_result, kept):
    file = f"<cell of {text!r} {keeps_result}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"Out": {}}
    _run(CodeCell(7, file, text, failed=False, keeps_result=keeps_result), namespace)
    assert namespace["Out"] == kept
    assert [namespace.get(name) for name in ("_", "_7")] == [kept.get(7)] * 2


# Tensors and peaks


def test_the_tensors_of_a_function_are_found_behind_any_object_but_not_in_modules():
    class Holder:
        def __init__(self, *values: object) -> None:
            self.values = {"all": list(values)}

    weight, other, hidden = torch.ones(1), torch.ones(2), torch.ones(3)
    module = types.ModuleType("leads_to_everything")
    module.hidden = hidden  # type: ignore[attr-defined]
    weight.grad = torch.ones(1)
    holder = Holder(weight, module, torch.float32)

    def step(x: object = other) -> object:
        return holder, x

    found = used_tensors(step)
    assert {id(tensor) for tensor in found} == {id(weight), id(weight.grad), id(other)}
    assert len(found) == 3


def test_the_request_that_reaches_the_peak_is_refused_and_those_before_it_are_not():
    with simulate("1GiB", compute=False, context=0) as machine:
        with refused_peak(machine.gpus[0], 100 * MIB):
            kept = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
            with pytest.raises(torch.OutOfMemoryError, match=r"stops at its peak of 100\.0 MiB"):
                torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
            # It was the first one; the report is made without limit.
            kept.append(torch.empty(40 * MIB, dtype=torch.uint8, device="cuda"))
        assert torch.cuda.memory_allocated() == 120 * MIB
