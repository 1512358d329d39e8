"""``%load_ext pytorch_memlab.imu``: %imu_start and %imu_stop, with a line that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import load_ipython_extension as _load, unload_ipython_extension

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Load the magics for ``%load_ext pytorch_memlab.imu``."""
    _load(shell)
    print("Enabling IPython Memory Usage, use %imu_start to begin, %imu_stop to end")
