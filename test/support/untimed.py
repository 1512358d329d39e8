"""Kernels of compiled code that are not timed, so that a test counts its own memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def untimed_kernels() -> Iterator[None]:
    """Within: all kernels count as timed before, as in the second run of a program on a GPU."""
    from pytorch_memlab.simulation.compiled.kernel_timing import KernelTiming

    def take(timing: KernelTiming, *_args: Any) -> None:
        timing.is_due = False

    with patch.object(KernelTiming, "take", take):
        yield
