"""Calls that ``torch.profiler`` does not see when it records Python functions.

A simulated op makes about a hundred calls of Python. With ``with_stack=True`` PyTorch's profiler
records each of them: a profile of five steps of ResNet-50 has 480 MB then, and takes minutes to
write.
"""

from __future__ import annotations

import ctypes
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


def hidden(work: Callable[..., T], *args: Any) -> T:
    """Do work while no trace or profile function of this thread is called."""
    state = _thread_state()
    try:
        # In the block: Python may raise an interrupt when the call returns, and not before it.
        _enter(state)
        return work(*args)
    finally:
        _leave(state)
