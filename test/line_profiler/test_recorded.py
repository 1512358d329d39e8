"""The data of several profilers as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.sample_reports import CUDA0, INNER, OUTER, entry

from pytorch_memlab.line_profiler.facts_of_run import combined
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile


def part(function, line, *, is_lower_bound):
    device = MeasuredDevice(CUDA0, 24, 0, 0, 0, is_lower_bound=is_lower_bound)
    return RecordedProfile((), (device,), (function,), (entry(0, line, 4),), (), ())


def test_a_peak_is_a_lower_bound_if_one_of_the_profilers_says_so():
    bounds = [part(OUTER, 8, is_lower_bound=True), part(INNER, 5, is_lower_bound=False)]
    for parts in (bounds, bounds[::-1]):
        [device] = combined(parts, ()).devices
        assert (device.device, device.capacity, device.is_lower_bound) == (CUDA0, 24, True)
    [device] = combined(bounds[1:], ()).devices
    assert not device.is_lower_bound


def test_calls_count_as_the_first_profiler_has_them():
    calls = [RecordedCall(0, None, Path("train.py"), "<module>", 3, hits) for hits in (1, 2, 3)]
    outer, again, inner = (
        replace(part(function, 8, is_lower_bound=False), calls=(call,))
        for function, call in zip((OUTER, OUTER, INNER), calls, strict=True)
    )
    whole = combined([outer, again, inner], ())
    assert whole.functions == (OUTER, INNER)
    assert whole.calls == (calls[0], replace(calls[2], callee=1))
