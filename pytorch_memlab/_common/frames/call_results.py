"""The use of the result of a call in progress, found in the caller's bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import FrameType

_EMPTY = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN"})
"""Instructions that do nothing with a result."""


def instructions_after_call(frame: FrameType) -> Iterator[dis.Instruction]:
    """The instructions that follow a frame's current call."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti and instruction.opname not in _EMPTY:
            yield instruction


def is_result_dropped(frame: FrameType | None) -> bool:
    """True if nothing gets the result of a frame's current call, not even a prompt to show it."""
    following = None if frame is None else next(instructions_after_call(frame), None)
    return following is not None and following.opname == "POP_TOP"
