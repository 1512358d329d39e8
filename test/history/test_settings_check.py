"""The log of requests that reports make again: how long it gets, and what it tells."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.catalogue import remedies
from pytorch_memlab.history.replay import check_settings
from pytorch_memlab.simulation.machine import allocation_log

MIB = 2**20


def take(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def run_out() -> torch.OutOfMemoryError:
    """Fragmented memory: every second part of four segments is in use."""
    large = [take(60) for _ in range(4)]
    del large
    kept = [take(31) for _ in range(4)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(64)
    del kept
    return caught.value


def test_the_same_settings_fail_again_and_others_may_not():
    with simulate("256MiB") as machine:
        run_out()
        failure = machine.gpus[0].failure
        found = [
            check_settings(failure.request, failure.requests, failure.length, settings)
            for settings in ("", "expandable_segments:True", "max_split_size_mb:50")
        ]
    assert [one.fits for one in found] == [False, True, True]
    assert [one.requests for one in found] == [8, 8, 8]


def test_a_request_that_fits_on_one_stream_alone():
    with simulate("256MiB") as machine:
        with torch.cuda.stream(torch.cuda.Stream()):
            parts = [take(8) for _ in range(24)]
            kept = parts[::2]
            del parts
        with pytest.raises(torch.OutOfMemoryError), torch.cuda.stream(torch.cuda.Stream()):
            buffers = [take(8) for _ in range(20)]
        failure = machine.gpus[0].failure
        arguments = (failure.request, failure.requests, failure.length, "")
        assert not check_settings(*arguments).fits
        assert check_settings(*arguments, one_stream=True).fits
        del kept
        buffers = []
        assert buffers == []


def test_the_limit_of_the_program_counts_where_it_leaves_less_than_the_gpu_has():
    with simulate("1GiB") as machine:
        torch.cuda.set_per_process_memory_fraction(0.25)
        with pytest.raises(torch.OutOfMemoryError):
            take(257)
        failure = machine.gpus[0].failure
        assert failure.request.free > 257 * MIB
        found = check_settings(failure.request, failure.requests, failure.length, "")
    assert not found.fits


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_a_long_log_keeps_the_requests_of_what_is_in_use(monkeypatch):
    monkeypatch.setattr(allocation_log, "_LONGEST", 100)
    with simulate("280MiB") as machine:
        first = take(2)
        for _ in range(1000):
            take(1)
        log = machine.gpus[0].log
        assert len(log.requests) <= 104
        assert not log.is_whole
        assert log.requests[1:2].tolist() == [2 * MIB]
        error = run_out()
        report = uncaught.add(error)
        del first
    remedy = next(one for one in remedies(report.facts) if one.cause == "fragmentation")
    assert remedy.effect.endswith("before it fit; others may not")
    assert "before it fit; others may not)" in " ".join(report.text.split())


def test_the_log_holds_no_more_than_numbers_of_what_was_freed():
    with simulate("256MiB") as machine:
        for _ in range(100):
            take(1)
        log = machine.gpus[0].log
        assert torch.cuda.memory_allocated() == 0  # a question finds the last one dead
        assert log.live == {}
        assert (len(log.requests), log.requests.itemsize) == (400, 8)
