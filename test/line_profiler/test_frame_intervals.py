"""The intervals of a frame, whose lines belong to the frames of other threads too."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from pytorch_memlab.devices import NO_APPROXIMATIONS
from pytorch_memlab.line_profiler.function_intervals import FrameIntervals
from pytorch_memlab.line_profiler.line_store import LineTotals


def test_a_line_is_found_while_other_threads_add_lines():
    lines = {number: LineTotals() for number in range(1, 4)}

    def add_line(*_):
        lines[len(lines) + 1] = LineTotals()
        return add_line

    no_devices = SimpleNamespace(now=tuple, approximations_before_use=lambda: NO_APPROXIMATIONS)
    frame = FrameIntervals(lines, no_devices)
    frame.resume(3)
    before = sys.gettrace()
    sys.settrace(add_line)
    try:
        number = frame.drop()
    finally:
        sys.settrace(before)
    assert number == 3
    assert len(lines) > 3
