"""The calls of ``optimizer.step()`` that are steps of the program."""

from __future__ import annotations

from types import FrameType


def is_within_another(frame: FrameType) -> bool:
    """True if an optimizer steps as a part of another one, as ZeroRedundancyOptimizer has it."""
    code, outer = frame.f_code, frame.f_back
    while outer is not None:
        if outer.f_code is code:
            return True
        outer = outer.f_back
    return False
