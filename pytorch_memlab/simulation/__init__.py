"""CUDA GPUs without a GPU: the caching allocator, and programs that run as if it had them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trace_replay import Replay, replay
    from .simulator import simulate

__all__ = ["Replay", "replay", "simulate"]


def __getattr__(name: str) -> Any:
    # The allocator needs no torch: reading a trace loads none.
    if name in ("Replay", "replay"):
        from . import trace_replay as module
    elif name == "simulate":
        from . import simulator as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(module, name)
    return value
