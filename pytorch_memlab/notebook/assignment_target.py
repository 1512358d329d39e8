"""The name that the result of the call in progress will be assigned to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._common.call_results import instructions_after_call

if TYPE_CHECKING:
    from types import FrameType

_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL", "STORE_FAST"})
_ON_THE_WAY = frozenset(
    {
        "CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_KW", "PRECALL",
        "KW_NAMES", "COPY", "DUP_TOP", "BEFORE_WITH", "SETUP_WITH", "SWAP", "LOAD_SPECIAL",
    }
)  # fmt: skip
"""Instructions that may stand between a call and the assignment of its result."""


def assignment_target(frame: FrameType) -> str | None:
    """The first name that a frame will assign the result of its current call to, also by ``with``.

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
    for instruction in instructions_after_call(frame):
        if instruction.opname in _STORES:
            return str(instruction.argval)
        if instruction.opname not in _ON_THE_WAY:
            return None
    return None
