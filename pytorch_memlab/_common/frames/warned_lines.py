"""Warnings name the line that they mean, though frames of modes stand on the stack."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..patching.patches import Patches
from .call_stacks import SKIPPED


def install(patches: Patches) -> None:
    """Correct warnings when they are shown: those of C++ name the innermost frame of Python."""

    @patches.around(warnings, "_showwarnmsg")
    def show(original: Callable[[Any], None], message: Any) -> None:
        meant = _meant(sys._getframe(2), message.filename, message.lineno)
        if meant is not None:
            message.filename, message.lineno = meant.f_code.co_filename, meant.f_lineno
        original(message)


def _meant(frame: FrameType | None, filename: str, line: int) -> FrameType | None:
    """The frame at the level of the one that was named, modes left out; None if it is no mode's."""
    # A function of torch calls the function mode, which calls it again: that is one frame.
    visible: list[FrameType] = []
    named_level = passed = 0
    called_by_mode = None
    while frame is not None:
        code = frame.f_code
        is_of_mode = code.co_filename.startswith(SKIPPED)
        is_hidden = is_of_mode or code is called_by_mode
        called_by_mode = visible[-1].f_code if is_of_mode and visible else None
        passed += 1
        if not is_hidden:
            visible.append(frame)
        if not named_level and (code.co_filename, frame.f_lineno) == (filename, line):
            if not is_hidden:
                return None
            named_level = passed
        if 0 < named_level <= len(visible):
            return visible[named_level - 1]
        frame = frame.f_back
    return None
