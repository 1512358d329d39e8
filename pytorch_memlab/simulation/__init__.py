"""CUDA GPUs without a GPU: the caching allocator, and programs that run as if it had them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .allocator.replay import Replay, replay
    from .simulator import simulate, simulate_without_traces

__all__ = ["Replay", "replay", "simulate", "simulate_without_traces"]


def __getattr__(name: str) -> Any:
    # The allocator needs no torch: reading a trace loads none.
    homes = {
        "Replay": "allocator.replay",
        "replay": "allocator.replay",
        "simulate": "simulator",
        "simulate_without_traces": "simulator",
    }
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{home}", __name__), name)
    return value
