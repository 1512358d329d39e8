"""Which line of a PyTorch program holds the GPU memory, and why."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .courtesy import Courtesy
    from .line_profiler.line_profiler import LineProfiler
    from .line_profiler.profile import (
        clear_global_line_profiler,
        display,
        profile,
        profile_every,
        set_target_gpu,
    )
    from .mem_reporter import MemReporter
    from .scopes import PeakScope
    from .simulation.simulator import simulate

__version__ = "1.0.0.dev0"

_HOMES = {
    "Courtesy": "courtesy",
    "LineProfiler": "line_profiler.line_profiler",
    "MemReporter": "mem_reporter",
    "PeakScope": "scopes",
    "clear_global_line_profiler": "line_profiler.profile",
    "display": "line_profiler.profile",
    "profile": "line_profiler.profile",
    "profile_every": "line_profiler.profile",
    "set_target_gpu": "line_profiler.profile",
    "simulate": "simulation.simulator",
}

__all__ = [
    "Courtesy",
    "LineProfiler",
    "MemReporter",
    "PeakScope",
    "clear_global_line_profiler",
    "display",
    "profile",
    "profile_every",
    "set_target_gpu",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is used: importing the package costs next to nothing.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
