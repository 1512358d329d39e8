"""The simulated machine that is on, for those who only want to know: no torch, nothing loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine

machine: Machine | None = None
"""The machine that programs run on now, None outside ``simulate``."""
