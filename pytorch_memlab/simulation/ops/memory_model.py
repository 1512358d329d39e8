"""One entry of the table of kernels: what it takes, where that is known from, how well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .op_call import Launch


class Basis(Enum):
    """How well an entry is known.

    ``RECORDING``: a recording of a real GPU has an allocation that names the op, made besides its
    results, and the recorded program makes the same one in this op when it is simulated; a test
    finds it in ``test/data/recordings``. ``SOURCE``: PyTorch's own sources,
    which run on the host, give every size and their order, but no recording shows them.
    ``ESTIMATE``: something that the sources do not tell decides, such as a library's plan or the
    tile sizes that a template picks for a GPU's generation.

    To the user all but what a recording confirms is an estimate, and is marked at its line.
    """

    RECORDING = "confirmed by a recording"
    SOURCE = "read in PyTorch's sources"
    ESTIMATE = "estimate"


def nothing(launch: Launch) -> None:
    """``take`` of an entry whose kernels take nothing more once their results are made."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernels of one family of ops take.

    Args:
        take: borrows, in the kernel's order, what it takes after its results are made.
        source: file of PyTorch's sources that the formula comes from.
        basis: how well that is known.
        prepare: borrows what it takes before its results are made, until the op ends.
        make: takes its results' memory with ``launch.made`` where the kernel takes other memory in
            between, or makes them in another order than it returns them; the rest follow after it.
    """

    take: Callable[[Launch], None]
    source: str
    basis: Basis
    prepare: Callable[[Launch], None] | None = None
    make: Callable[[Launch], None] | None = None
