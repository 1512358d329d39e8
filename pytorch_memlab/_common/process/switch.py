"""The environment variable that turns the whole package on or off."""

from __future__ import annotations

import os

from ...errors import UsageError
from ..text.quoted import quoted

SWITCH = "PYTORCH_MEMLAB"
"""``0`` turns every profiler off, ``1`` or nothing leaves it on."""

SWITCHED_OFF = f"{SWITCH}=0 turns profiling off"
"""What a report says where that is why it is empty."""


def is_switched_off() -> bool:
    """True if the user turned profiling off for this process."""
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise UsageError(f"{SWITCH} is 0 (off) or 1 (on), not {quoted(value)}")
    return value == "0"
