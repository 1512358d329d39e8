"""The tables of the profiler and of the simulated GPU do not grow with the number of steps."""

from __future__ import annotations

import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.frames.call_stacks import call_stacks
from pytorch_memlab.simulation.machine import active
from pytorch_memlab.simulation.machine.allocation_log import AllocationLog


def step(weight):
    loss = (weight * 2).sum()
    loss.backward()
    with torch.no_grad():
        weight -= weight.grad
    weight.grad = None


def kept_after(profiler, weight, steps):
    """The numbers of records, of blocks and of places of stacks after more steps."""
    for _ in range(steps):
        step(weight)
    profile = profiler.recorded(with_history=False)
    gpu = active.machine.gpu(0)
    hits = sum(entry.hits for entry in profile.entries)
    tables = (len(profile.entries), len(profile.calls), len(gpu.log.live), len(call_stacks._places))
    return tables, hits


def test_as_many_records_after_ten_times_the_steps():
    with simulate("24GiB", compute=False), LineProfiler(step) as profiler:
        weight = torch.ones(1 << 16, device="cuda", requires_grad=True)
        (tables, hits), (later, more_hits) = [
            kept_after(profiler, weight, steps)
            for steps in (20, 180)  # called at one line
        ]
    assert later == tables
    assert more_hits == 10 * hits


def test_the_log_of_requests_has_a_limit_that_does_not_depend_on_their_number():
    log = AllocationLog()
    log.allocated(1, 512, 512, 0)
    longest = 0
    for _ in range(100_000):
        log.allocated(2, 512, 512, 0)
        log.freed(2, waits=False)
        longest = max(longest, len(log.requests))
    assert longest <= 150_004
    assert not log.is_whole  # which is said where the requests are asked for
    assert list(log.live) == [1]
