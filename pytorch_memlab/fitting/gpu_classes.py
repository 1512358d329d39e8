"""Which GPUs run a program alike."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..simulation.hardware.gpu import GPU


def runs_alike(one: GPU, other: GPU, reads: Collection[str]) -> bool:
    """Whether what a program did on one GPU is what it does on another.

    What runs follows from the properties that the program and the simulated kernels read: where
    these are equal, everything that they decide is equal.

    Args:
        one: the GPU that the program ran on.
        other: the other one.
        reads: the properties that were read on ``one``.
    """
    return all(getattr(one, name) == getattr(other, name) for name in reads)
