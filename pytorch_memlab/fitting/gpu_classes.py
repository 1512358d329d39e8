"""Which GPUs run a program alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..simulation.hardware.gpu import GPU


@dataclass(frozen=True, slots=True)
class Decision:
    """What a GPU decided about kernels. See Note [Decisions of a GPU].

    Args:
        function: that decides.
        arguments: beside the GPU.
        keywords: names and values of its keyword arguments.
        result: of the function.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    result: Any

    def is_that_of(self, gpu: GPU) -> bool:
        """Whether another GPU decides alike.

        Args:
            gpu: the GPU.
        """
        return bool(self.function(gpu, *self.arguments, **dict(self.keywords)) == self.result)


def runs_alike(one: GPU, other: GPU, reads: Collection[Any]) -> bool:
    """Whether what a program did on one GPU is what it does on another.

    What runs follows from the properties that the program and the simulated kernels read, and from
    what functions of the GPU decided: where these are equal, the same happens.

    Args:
        one: the GPU that the program ran on.
        other: the other one.
        reads: names of properties that were read on ``one``, and its decisions.
    """
    return all(
        read.is_that_of(other)
        if isinstance(read, Decision)
        else getattr(one, read) == getattr(other, read)
        for read in reads
    )
