"""Threads that meet anywhere in the profiler: nothing is lost, and no thread gets an exception."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.frames.thread_frames import thread_frames
from pytorch_memlab._common.process.garbage_collection import no_garbage_collection
from pytorch_memlab._common.process.made_once import made_once
from pytorch_memlab.devices import get_device
from pytorch_memlab.scopes import HighestInterval, PeakScope, Sample, peak_tracker
from pytorch_memlab.scopes.row import ROW_FIELDS
from pytorch_memlab.simulation.machine import simulated_gpu

PEAK = "allocated_bytes.all.peak"
MIB = 2**20
THREADS = 4


@pytest.fixture(autouse=True)
def threads_change_as_often_as_they_can() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], object]) -> list[BaseException]:
    """Run each in a thread, all beginning together; returns what they raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        start.wait(60)
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def sample(peak: int) -> Sample:
    values = np.zeros(len(ROW_FIELDS), dtype=np.int64)
    values[ROW_FIELDS.index("allocated_bytes.all.peak")] = peak
    return Sample(values.tobytes(), 0)


def test_no_interval_is_lost_while_others_are_merged():
    for turn in range(10):
        highest = HighestInterval()
        missed: list[int] = []

        def add(first: int, highest: HighestInterval = highest, missed: list[int] = missed) -> None:
            for peak in range(first, first + 200 * THREADS, THREADS):
                highest.add(sample(0), sample(peak))
                if highest.stats()[PEAK] < peak:
                    missed.append(peak)

        assert at_once(*(lambda i=i: add(i) for i in range(turn, turn + THREADS))) == []
        assert missed == [], "a thread did not find what it had just added"
        assert highest.stats()[PEAK] == turn + 200 * THREADS - 1


def test_an_interval_added_in_the_middle_of_a_merge_by_the_same_thread_counts(monkeypatch):
    """As a finalizer or a signal's handler does."""
    from pytorch_memlab.scopes import intervals as intervals_module

    highest = HighestInterval()
    merge = intervals_module._with_intervals
    late = [sample(peak) for peak in range(1000, 1040)]

    def interrupted(row: Any, intervals: Any) -> Any:
        merged = merge(row, intervals)
        while late:
            highest.add(sample(0), late.pop())
        return merged

    monkeypatch.setattr(intervals_module, "_with_intervals", interrupted)
    for peak in range(16):
        highest.add(sample(0), sample(peak))
    assert highest.stats()[PEAK] == 1039


def test_one_function_in_several_threads_has_all_hits_and_its_peak():
    def work(number: int) -> None:
        kept = torch.empty(number * MIB, dtype=torch.uint8, device="cuda")
        del kept

    def loop() -> None:
        for number in range(40):
            work(number % 8 + 1)

    first = work.__code__.co_firstlineno
    with simulate("24GiB"):
        with LineProfiler(work) as profiler:
            assert at_once(*[loop] * THREADS) == []
        entries = {entry.line - first: entry for entry in profiler.records()._raw_line_records}
        assert [entries[line].hits for line in range(3)] == [THREADS * 40] * 3
        assert 8 * MIB <= entries[1].stats["allocated_bytes.all.peak"] <= 8 * MIB * THREADS
        assert peak_tracker(get_device(0)).segments == []


def test_every_thread_finds_the_gpu_that_it_used_first():
    def work(index: int) -> torch.Tensor:
        return torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{index}")

    def loop(index: int) -> None:
        for _ in range(5):
            work(index)

    line = work.__code__.co_firstlineno + 1
    for _ in range(15):
        with simulate("24GiB", count=THREADS):
            with LineProfiler(work) as profiler:
                assert at_once(*(lambda i=i: loop(i) for i in range(THREADS))) == []
            peaks = {
                entry.device.name: entry.stats["allocated_bytes.all.peak"]
                for entry in profiler.records()._raw_line_records
                if entry.line == line
            }
            assert len(peaks) == THREADS
            assert all(MIB <= peak <= 5 * MIB for peak in peaks.values()), peaks


def test_a_profiler_that_ends_while_threads_run_takes_all_its_windows_with_it():
    def work() -> None:
        kept = torch.empty(512, device="cuda")
        del kept

    def loop(over: threading.Event) -> None:
        while not over.is_set():
            work()

    def profile(over: threading.Event) -> None:
        try:
            for _ in range(5):
                with LineProfiler(work):
                    pass
        finally:
            over.set()

    with simulate("24GiB"):
        torch.empty(1, device="cuda")
        tracker = peak_tracker(get_device(0))
        for _ in range(10):
            over = threading.Event()
            loops = [lambda over=over: loop(over)] * (THREADS - 1)
            assert at_once(lambda over=over: profile(over), *loops) == []
            assert tracker.segments == []


def test_a_window_that_nobody_holds_any_more_gives_the_peaks_back():
    with simulate("24GiB"):
        scope = PeakScope()
        scope.start()
        assert peak_tracker(scope.device).segments
        del scope
        assert peak_tracker(get_device(0)).segments == []


def test_all_threads_get_the_object_that_was_made_first():
    both_are_in = threading.Barrier(2)

    def make() -> object:
        both_are_in.wait(60)
        return object()

    made, found = made_once(make), []
    assert at_once(*[lambda: found.append(made())] * 2) == []
    assert found[0] is found[1] is made()


def test_a_device_has_one_reader_and_one_tracker():
    for _ in range(50):
        with simulate("24GiB"):
            found: list[object] = []
            at_once(*[lambda found=found: found.append(peak_tracker(get_device(0)))] * THREADS)
            assert len({id(one) for one in found}) == 1


def test_no_garbage_collection_starts_while_an_allocator_is_at_work() -> None:
    # Finalizers would wait for locks that other threads hold while they wait for the allocator's.
    seen: list[bool] = []

    def note(phase: str, _info: object) -> None:
        if phase == "start":
            seen.append(simulated_gpu._busy.locked())

    before = gc.get_threshold()
    with simulate("24GiB"):
        gc.callbacks.append(note)
        gc.set_threshold(1)
        try:
            for _ in range(50):
                torch.empty(1, device="cuda")
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(note)
    assert len(seen) > 50
    assert not any(seen)


def without_collections() -> None:
    with no_garbage_collection():
        pass


@pytest.mark.parametrize(
    "work",
    [
        without_collections,
        thread_frames,
        lambda: torch.empty(1, device="cuda"),
    ],
    ids=["no garbage collection", "frames", "allocator"],
)
def test_collections_that_another_thread_turns_on_again_stay_on(
    work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_on = gc.isenabled

    def is_on_before_the_other_thread_ends() -> bool:
        state = is_on()
        gc.enable()
        return state

    with simulate("24GiB"):
        monkeypatch.setattr(gc, "isenabled", is_on_before_the_other_thread_ends)
        monkeypatch.setattr(simulated_gpu, "_gc_is_on", is_on_before_the_other_thread_ends)
        gc.disable()  # by the other thread
        try:
            work()
            assert is_on()
        finally:
            gc.enable()
