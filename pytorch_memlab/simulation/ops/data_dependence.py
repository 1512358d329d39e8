"""How the outputs of an op depend on values, for dry runs, which have none.

Every rule errs on the side of more memory: all elements of a mask are true, all elements are
distinct; a number that is read is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import torch

ZERO: Final = "0"
TRUE: Final = "every element True"
DISTINCT: Final = "all elements distinct"


class DataDependentReadCounter(Protocol):
    """Counts reads of values that a dry run does not have."""

    def count(self, op: str) -> None:
        """Count a read at the innermost line of the program."""


class DryRun(Protocol):
    """What the rule of an op may ask of a dry run."""

    @property
    def reads(self) -> DataDependentReadCounter:
        """The reads so far."""

    @property
    def answers(self) -> list[bool]:
        """The truth values to return next, the last one first; then all are false."""

    def make(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor without values."""

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has values."""

    def is_readable(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has values, or zeros in their place."""

    def forget_values(self, tensor: torch.Tensor) -> None:
        """The storage of a tensor has no values from now on."""


Rule = Callable[[DryRun, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class DataDependence:
    """What an op does with values.

    Args:
        called: the name that a program calls it by.
        assumption: what a dry run assumes the values to be.
        outputs: returns the outputs without values; None: the op takes masks among the indices
            that are its second argument.
        counts_itself: ``outputs`` counts the read, because the values are usually known.
    """

    called: str
    assumption: str
    outputs: Rule | None = None
    counts_itself: bool = False


MASKS: Final = DataDependence("mask as an index", TRUE)
"""Of ops that take masks among indices."""


def options_after_first(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> list[Any]:
    """Arguments after the first, by name; None for those not given."""
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    return [given.get(name) for name in names]
