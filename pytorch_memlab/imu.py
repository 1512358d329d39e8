"""``%load_ext pytorch_memlab.imu``: %imu_start and %imu_stop, with a line that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Load the magics for ``%load_ext pytorch_memlab.imu``."""
    from .notebook.imu_magics import ImuMagics

    shell.register_magics(ImuMagics)
    print("Enabling IPython Memory Usage, use %imu_start to begin, %imu_stop to end")


def unload_ipython_extension(shell: InteractiveShell) -> None:  # noqa: ARG001 - IPython gives it
    """Print no more lines: ``%unload_ext pytorch_memlab.imu`` calls this, ``%reload_ext`` too."""
    from .notebook.memory_usage import stop_watching_memory
    from .notebook.shell import is_reloading

    if not is_reloading():
        stop_watching_memory()
