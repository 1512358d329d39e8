"""What becomes of the result of the call in progress: a name for it, or nothing."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL", "STORE_FAST"})
_ON_THE_WAY = frozenset(
    {
        "CACHE", "CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_KW",
        "PRECALL", "KW_NAMES", "COPY", "DUP_TOP", "BEFORE_WITH", "SETUP_WITH", "SWAP", "NOP",
        "LOAD_SPECIAL", "EXTENDED_ARG", "NOT_TAKEN",
    }
)  # fmt: skip
"""Instructions that may stand between a call and the assignment of its result."""


def assignment_target(frame: FrameType) -> str | None:
    """The first name that a frame will assign the result of its current call to.

    Args:
        frame: that is in a call.

    Returns:
        the name, also that of ``with call() as name``; None if there is none.

    >>> import sys
    >>> def call():
    ...     return assignment_target(sys._getframe(1))
    >>> def use():
    ...     result = call()
    ...     return result
    >>> use()
    'result'
    >>> call() is None
    True
    """
    following = _following(frame)
    if following is not None and following.opname in _STORES:
        return str(following.argval)
    return None


def is_result_dropped(frame: FrameType | None) -> bool:
    """Whether nothing gets the result of a frame's current call, not even IPython to show it.

    Args:
        frame: that is in a call; None is no frame, which drops nothing.

    >>> import sys
    >>> dropped = []
    >>> def call():
    ...     dropped.append(is_result_dropped(sys._getframe(1)))
    >>> def use():
    ...     call()
    ...     return call()
    >>> use()
    >>> dropped
    [True, False]
    """
    following = None if frame is None else _following(frame)
    return following is not None and following.opname == "POP_TOP"


def _following(frame: FrameType) -> dis.Instruction | None:
    """The instruction that takes the result of the call."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti and instruction.opname not in _ON_THE_WAY:
            return instruction
    return None
