"""One entry of the table of kernels: what it takes, where that is known from, how well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .launch import Launch


class Basis(Enum):
    """How well an entry is known."""

    RECORDING = "confirmed by a recording"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernels of one family of ops take.

    Args:
        take: borrows, in the kernel's order, what it takes after its results are made.
        source: file of PyTorch's sources that the formula comes from.
        basis: whether a recording of a real GPU confirms it.
        prepare: borrows what it takes before its results are made, until the op ends.
    """

    take: Callable[[Launch], None]
    source: str
    basis: Basis
    prepare: Callable[[Launch], None] | None = None
