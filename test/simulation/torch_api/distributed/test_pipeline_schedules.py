"""Every stage of a pipeline holds as many micro-batches as its schedule says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.side_by_side_ranks import run_ranks
from torch import nn

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

pipelining = pytest.importorskip("torch.distributed.pipelining")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

SAVED = 64 * 2**20
"""Bytes that a stage keeps of a micro-batch until its backward pass."""

SMALL = 2**20
"""More than all else that a stage holds."""


class Keep(torch.autograd.Function):
    """Keeps ``SAVED`` bytes from its forward pass to its backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.empty(SAVED, dtype=torch.uint8, device=x.device))
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (kept,) = ctx.saved_tensors
        assert kept.numel() == SAVED
        return grad * 1


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return Keep.apply(x * self.weight)


def held(name, size, micro_batches, per_rank, rank):
    """Micro-batches of a rank, measured: of the peak of its second step."""
    kind = getattr(schedules, name)
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    numbers = [rank + size * n for n in range(per_rank)]
    if is_v:
        numbers = [rank, 2 * size - 1 - rank]
    device = torch.device("cuda", 0)
    stages = [
        pipelining.PipelineStage(Stage().to(device), number, size * per_rank, device)
        for number in numbers
    ]
    is_multi = issubclass(kind, schedules.PipelineScheduleMulti)
    schedule = kind(
        stages if is_multi else stages[0],
        micro_batches,
        loss_fn=lambda output, target: (output - target).sum(),
    )
    inputs = (torch.ones(micro_batches, 8, device=device),) if 0 in numbers else ()
    target = {}
    if size * per_rank - 1 in numbers:
        target = {"target": torch.ones(micro_batches, 8, device=device)}
    schedule.step(*inputs, **target)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    schedule.step(*inputs, **target)
    count, rest = divmod(torch.cuda.max_memory_allocated() - before, SAVED)
    measured = count if rest < SMALL else f"{count} and {rest} bytes"
    return (measured, of_table(schedule, rank)) if is_multi else measured


def interleaved(size, micro_batches, per_rank, rank):
    """Warm-up of the interleaved schedule of Megatron-LM, and the forward that follows it."""
    warm_up = 2 * (size - rank - 1) + (per_rank - 1) * size
    return min(micro_batches * per_rank, warm_up + 1)


def of_table(schedule, rank):
    """Micro-batches between their forward pass and the backward pass through what they keep.

    The first stage has no gradient of an input: all of its backward pass is that of the weights.
    """
    most = now = 0
    for action in schedule.pipeline_order[rank]:
        for part in (getattr(action, "sub_actions", None) or [action]) if action else []:
            kind = part.computation_type.name
            last = "BACKWARD_INPUT" if part.stage_index else "BACKWARD_WEIGHT"
            now += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", last))
            most = max(most, now)
    assert now == 0
    return most


COUNTS = {
    "ScheduleGPipe": lambda p, m, v, i: m,
    "Schedule1F1B": lambda p, m, v, i: min(p - i, m),
    "ScheduleInterleaved1F1B": interleaved,
    "ScheduleLoopedBFS": lambda p, m, v, i: m * v,
}

SHAPES = [
    ("ScheduleGPipe", 4, 8, 1),
    ("ScheduleGPipe", 3, 2, 1),
    ("Schedule1F1B", 4, 8, 1),
    ("Schedule1F1B", 3, 3, 1),
    ("ScheduleInterleaved1F1B", 3, 6, 2),
    ("ScheduleInterleaved1F1B", 2, 2, 3),
    ("ScheduleLoopedBFS", 3, 4, 2),
]

TABLES = [
    ("ScheduleInterleavedZeroBubble", 2, 4, 2),
    ("ScheduleZBVZeroBubble", 3, 6, 2),
    ("ScheduleDualPipeV", 2, 4, 2),
]


@pytest.mark.parametrize(("name", "size", "micro_batches", "per_rank"), SHAPES)
def test_a_stage_holds_the_micro_batches_of_its_schedule(name, size, micro_batches, per_rank):
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    measured = run_ranks(lambda rank: held(name, size, micro_batches, per_rank, rank), size)
    expected = [COUNTS[name](size, micro_batches, per_rank, rank) for rank in range(size)]
    assert [one if per_rank == 1 else one[0] for one in measured] == expected


@pytest.mark.parametrize(("name", "size", "micro_batches", "per_rank"), TABLES)
def test_a_rank_holds_the_micro_batches_of_its_table(name, size, micro_batches, per_rank):
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    measured = run_ranks(lambda rank: held(name, size, micro_batches, per_rank, rank), size)
    print(measured)
    assert [one for one, _ in measured] == [table for _, table in measured]
    assert len({table for _, table in measured} - {0}) >= 1
