"""Peak scopes: each window's own peak, to the byte, and the program's own untouched."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings, strategies as st

from pytorch_memlab import PeakScope, simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.errors import UnknownDeviceError, UsageError
from pytorch_memlab.scopes import peak_tracker
from pytorch_memlab.scopes.peak_tracker import PeakTracker, Window

MIB = 2**20


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def test_a_scope_has_its_own_peak_and_deltas() -> None:
    with simulate("24GiB"):
        before = block(10)
        with PeakScope() as scope:
            kept = block(3)
            blip = block(5)
            del blip
        assert (scope.peak, scope.used) == (18 * MIB, 13 * MIB)
        assert (scope.used_delta, scope.peaked_delta) == (3 * MIB, 5 * MIB)
        del before, kept
        assert scope.used == 13 * MIB


def test_peaked_delta_does_not_count_what_was_freed() -> None:
    with simulate("24GiB"):
        before = block(10)
        with PeakScope() as scope:
            blip = block(2)
            del before, blip
        assert (scope.used_delta, scope.peaked_delta) == (-10 * MIB, 2 * MIB)


def test_nested_and_overlapping_scopes_do_not_disturb_each_other() -> None:
    with simulate("24GiB"):
        outer, early, late = PeakScope(), PeakScope(), PeakScope()
        outer.start()
        early.start()
        first = block(8)
        del first
        late.start()
        second = block(4)
        early.stop()
        third = block(1)
        late.stop()
        outer.stop()
        assert [early.peak, late.peak, outer.peak] == [8 * MIB, 5 * MIB, 8 * MIB]
        assert [one.used_delta for one in (early, late, outer)] == [4 * MIB, 5 * MIB, 5 * MIB]
        del second, third


def test_a_scope_is_readable_while_it_is_open_and_can_begin_anew() -> None:
    with simulate("24GiB"), PeakScope() as scope:
        kept = block(1)
        assert (scope.peak, scope.used_delta, scope.peaked_delta) == (MIB, MIB, 0)
        block(2)
        assert (scope.peak, scope.used_delta, scope.peaked_delta) == (3 * MIB, MIB, 2 * MIB)
        scope.reset()
        assert (scope.peak, scope.used_delta, scope.peaked_delta) == (MIB, 0, 0)
        del kept
        assert (scope.peak, scope.used_delta, scope.peaked_delta) == (MIB, -MIB, 0)


def test_scopes_of_several_threads_see_what_happened_in_their_time() -> None:
    peaks = {}
    inner_open, outer_done = threading.Event(), threading.Event()

    def work() -> None:
        with PeakScope() as scope:
            inner_open.set()
            assert outer_done.wait(10)
            block(2)
        peaks["thread"] = scope.peak

    with simulate("24GiB"), PeakScope() as scope:
        block(16)
        thread = threading.Thread(target=work)
        thread.start()
        assert inner_open.wait(10)
        block(4)
        outer_done.set()
        thread.join()
        peaks["main"] = scope.peak
    assert peaks == {"thread": 4 * MIB, "main": 16 * MIB}


def test_every_device_has_its_own_windows() -> None:
    with simulate("24GiB", count=2):
        with PeakScope(0) as zero, PeakScope("cuda:1") as one:
            torch.empty(MIB, dtype=torch.uint8, device="cuda:1")
        assert (zero.peak, one.peak) == (0, MIB)


def test_the_programs_own_peaks_are_what_they_would_be_without_us() -> None:
    def program(measure: bool) -> list[int]:
        seen = []
        with simulate("24GiB"):
            block(32)
            scope = PeakScope()
            if measure:
                scope.start()
            seen.append(torch.cuda.max_memory_allocated())
            block(16)
            seen.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            seen.append(torch.cuda.max_memory_allocated())
            block(8)
            if measure:
                assert scope.peak == 16 * MIB
            block(4)
            seen.append(torch.cuda.memory_stats()["active_bytes.all.peak"])
            scope.stop()
            seen.append(torch.cuda.max_memory_allocated())
            seen.append(torch.cuda.memory_stats()["allocation.large_pool.allocated"])
            torch.cuda.reset_peak_memory_stats()
            seen.append(torch.cuda.max_memory_allocated())
        return seen

    assert program(measure=True) == program(measure=False)
    assert program(measure=True)[:4] == [32 * MIB, 32 * MIB, 0, 8 * MIB]


def test_a_reset_by_a_name_taken_before_counts_too() -> None:
    from torch.cuda import max_memory_allocated, reset_peak_memory_stats

    with simulate("24GiB"):
        with PeakScope() as scope:
            block(8)
            reset_peak_memory_stats()
            block(2)
            assert max_memory_allocated() == 2 * MIB
        assert scope.peak == 8 * MIB
        assert max_memory_allocated() == 2 * MIB


def test_the_host_is_measured_where_there_is_no_gpu() -> None:
    with PeakScope() as scope:
        kept = torch.empty(1000)
        (kept + 1).add_(1)
    assert scope.device.name == "cpu"
    assert (scope.peak, scope.used_delta, scope.peaked_delta) == (8000, 4000, 4000)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("osarm"), st.integers(0, 5)), max_size=40))
def test_any_order_of_windows_equals_a_recount(steps: list[tuple[str, int]]) -> None:
    """Open, stop, allocate, release and reset (a user's ``m``) in any order."""
    with simulate("24GiB"):
        now = user = 0
        held: list[torch.Tensor] = []
        scopes: list[tuple[PeakScope, list[int]]] = []
        for action, number in steps:
            if action == "o":
                scopes.append((PeakScope(), [now, now]))
                scopes[-1][0].start()
            elif action == "s" and scopes:
                scope, (start, peak) = scopes.pop(number % len(scopes))
                scope.stop()
                assert (scope.peak, scope.used_delta) == (peak, now - start)
            elif action == "a":
                held.append(torch.empty((number + 1) * 512, dtype=torch.uint8, device="cuda"))
                now += (number + 1) * 512
            elif action == "r" and held:
                now -= held.pop(number % len(held)).numel()
            elif action == "m":
                torch.cuda.reset_peak_memory_stats()
                user = now
            user = max(user, now)
            for _, seen in scopes:
                seen[1] = max(seen[1], now)
            assert torch.cuda.max_memory_allocated() == user
            assert [scope.peak for scope, _ in scopes] == [seen[1] for _, seen in scopes]
        for scope, _ in scopes:
            scope.stop()
        assert torch.cuda.max_memory_allocated() == user


@pytest.mark.knows_simulation("what a window kept is counted by the simulation alone")
def test_a_window_that_is_interrupted_as_it_ends_is_over_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end, ended = PeakTracker._end, list[Window]()

    def interrupted_once(tracker: PeakTracker, window: Window) -> None:
        ended.append(window)
        if len(ended) == 1:
            raise KeyboardInterrupt
        end(tracker, window)

    monkeypatch.setattr(PeakTracker, "_end", interrupted_once)
    with simulate("24GiB"):
        tracker = peak_tracker(get_device(0))
        window, _ = tracker.open()
        kept = block(3)
        with pytest.raises(KeyboardInterrupt):
            window.close()
        assert (window.is_open, window.kept, tracker.segments) == (False, 3 * MIB, [])
        assert window.close() is None
        assert tracker.restart(window) is None
        del kept


def test_misuse_is_one_clear_line() -> None:
    with pytest.raises(UnknownDeviceError, match=r"no device 'cuda:3' here: there is cpu$"):
        PeakScope("cuda:3")
    with pytest.raises(UsageError, match=r"this scope has not begun: start\(\) it"):
        PeakScope().peak  # noqa: B018 - the property raises
    with PeakScope() as scope, pytest.raises(UsageError, match=r"use reset\(\) to begin again"):
        scope.start()
