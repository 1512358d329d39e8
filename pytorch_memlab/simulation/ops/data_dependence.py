"""The dependence of outputs on values, for dry runs, which have none.

Every rule errs on the side of more memory: all elements of a mask are true, all elements are
distinct; a number that is read is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..machine.tensor_values import TensorValues

ZERO: Final = "0"
TRUE: Final = "every element True"
DISTINCT: Final = "all elements distinct"


Rule = Callable[["TensorValues", tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class DataDependence:
    """The use that an op makes of values.

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

    def count(self, values: TensorValues, op: str) -> None:
        """Count a read of values that a dry run does not have.

        Raises:
            AssumedValueError: the simulation is strict.
        """
        values.reads.count(op, self.called, self.assumption)


MASKS: Final = DataDependence("mask as an index", TRUE)
"""Of ops that take masks among indices."""
