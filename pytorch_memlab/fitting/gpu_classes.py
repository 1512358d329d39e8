"""Classes of GPUs on which a program runs in the same way."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..simulation.inspect import GPU


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a GPU decides about kernels. See Note [Decisions of a GPU]."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def made_by(self, gpu: GPU) -> Any:
        """The decision of a GPU; equal to nothing else where it cannot decide."""
        try:
            return self.function(gpu, *self.arguments, **dict(self.keywords))
        except Exception:
            return object()


def runs_alike(one: GPU, other: GPU, reads: Collection[Any]) -> bool:
    """True if a program does on one GPU what it did on another.

    What runs follows from the properties that the program and the simulated kernels read, and from
    what functions of the GPU decide: where these are equal, the same happens.
    """
    return all(
        read.made_by(one) == read.made_by(other)
        if isinstance(read, Decision)
        else getattr(one, read) == getattr(other, read)
        for read in reads
    )
