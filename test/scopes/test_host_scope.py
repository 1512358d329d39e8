"""Windows over the host's memory: exact peaks, nested and overlapping, and the fallback thread."""

from __future__ import annotations

import sys
import threading

import pytest

from pytorch_memlab._common.process.host_process import KernelCounters, Sampler, host_process
from pytorch_memlab._common.process.host_scope import HostPeakTracker
from pytorch_memlab.errors import UsageError
from pytorch_memlab.scopes import HostScope

MB = 2**20


class Script:
    """A process whose memory goes as a test says."""

    def __init__(self) -> None:
        self.now = self.highest = 100
        self.readers = 0

    def grow(self, *sizes: int) -> None:
        for size in sizes:
            self.now = size
            self.highest = max(self.highest, size)

    def resident(self) -> int:
        return self.now

    def peak(self) -> int:
        return self.highest

    def reset_peak(self) -> None:
        self.highest = self.now

    def start_tracking(self) -> None:
        self.readers += 1

    def stop_tracking(self) -> None:
        self.readers -= 1


@pytest.fixture
def script():
    return Script()


def values(scope: HostScope) -> tuple[int, int, int, int]:
    return scope.used, scope.peak, scope.used_delta, scope.peaked_delta


def test_scopes_nest_and_overlap_without_disturbing_each_other(script):
    tracker = HostPeakTracker(script)
    outer, inner, late = HostScope(tracker), HostScope(tracker), HostScope(tracker)
    script.grow(900, 100)
    outer.start()
    script.grow(400, 150)
    inner.start()
    script.grow(300, 120)
    late.start()
    inner.stop()
    script.grow(180, 160)
    assert values(outer) == (160, 400, 60, 240)
    assert values(inner) == (120, 300, -30, 150)
    assert values(late) == (160, 180, 40, 20)
    outer.stop()
    script.grow(1000)
    assert values(outer) == (160, 400, 60, 240)
    late.reset()
    assert values(late) == (1000, 1000, 0, 0)
    assert script.readers == 1
    late.stop()
    late.stop()
    assert script.readers == 0


def test_a_scope_that_is_used_wrongly_says_how_to_use_it(script):
    scope = HostScope(HostPeakTracker(script))
    with pytest.raises(UsageError, match="has not begun: start"):
        _ = scope.peak
    with pytest.raises(UsageError, match="not open: start"):
        scope.reset()
    with scope, pytest.raises(UsageError, match=r"open: use reset\(\)"):
        scope.start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this peak")
def test_a_blip_within_one_statement_is_seen_to_a_megabyte():
    assert isinstance(host_process(), KernelCounters)
    before = threading.active_count()
    with HostScope() as scope:
        assert threading.active_count() == before
        len(bytearray(300 * MB))
    assert abs(scope.peaked_delta - 300 * MB) <= MB
    assert abs(scope.used_delta) <= MB


def test_elsewhere_a_thread_takes_samples_while_a_scope_is_open():
    sampler = Sampler()
    before = threading.active_count()
    seen = threading.Event()
    plain = sampler.resident

    def resident() -> int:
        if threading.current_thread() is not threading.main_thread():
            seen.set()
            return plain() + 500 * MB
        return plain()

    sampler.resident = resident
    with HostScope(HostPeakTracker(sampler)) as scope:
        assert threading.active_count() == before + 1
        assert seen.wait(10)
        while scope.peak < scope.used + 400 * MB:
            pass
    assert threading.active_count() == before
    assert scope.peaked_delta > 400 * MB


def test_it_shows_its_numbers(script):
    scope = HostScope(HostPeakTracker(script))
    assert repr(scope) == "HostScope(not begun)"
    with scope:
        script.grow(400, 150)
    assert repr(scope) == "HostScope(peak=400, used_delta=50, peaked_delta=250)"
