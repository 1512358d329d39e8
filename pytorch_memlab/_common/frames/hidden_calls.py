"""Calls that ``torch.profiler`` does not see when it records Python functions, nor our own tracer.

A simulated op makes about a hundred calls of Python. With ``with_stack=True`` PyTorch's profiler
records each of them: a profile of five steps of ResNet-50 has 480 MB then, and takes minutes to
write. The line profiler's trace function looks at each and has no use for it, which takes
as long as the op itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_api: Any = getattr(ctypes, "pythonapi", None)
CAN_HIDE = hasattr(_api, "PyThreadState_EnterTracing")
"""CPython has it from 3.11 on; before, a profile shows the simulation's calls."""

if CAN_HIDE:
    _thread_state = _api.PyThreadState_Get
    _thread_state.restype = ctypes.c_void_p
    _enter, _leave = _api.PyThreadState_EnterTracing, _api.PyThreadState_LeaveTracing
    for _function in (_enter, _leave):
        _function.argtypes, _function.restype = (ctypes.c_void_p,), None


_gettrace = sys.gettrace
incurious: set[Any] = set()
"""The trace functions that are not to see the calls of simulated ops."""


def hide_from(trace: Any) -> None:
    """Hide the calls of simulated ops from a function for ``sys.settrace``, where possible."""
    # The functions of a program that an op of ATen calls, such as a finalizer, are hidden too.
    if CAN_HIDE:
        incurious.add(trace)


def show_to(trace: Any) -> None:
    """End `hide_from`."""
    incurious.discard(trace)


def is_incurious() -> bool:
    """True if the trace function of this thread is not to see the calls of simulated ops."""
    return bool(incurious) and _gettrace() in incurious


def hidden(work: Callable[..., T], *args: Any) -> T:
    """Do work while no trace or profile function of this thread is called."""
    state = _thread_state()
    try:
        # In the block: Python may raise an interrupt when the call returns, and not before it.
        _enter(state)
        return work(*args)
    finally:
        _leave(state)
