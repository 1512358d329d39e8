"""Values that a program asked for where there are none: what, how often, and at which line."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

from ..._common.program_lines import current_line
from ...errors import AssumedValueError

_ZERO: Final = "0"
_TRUE: Final = "every element True"
_DISTINCT: Final = "all elements distinct"

READS: Final = {
    "aten::_local_scalar_dense": ("Tensor.item", _ZERO),
    "aten::equal": ("equal", "equal"),
    "aten::allclose": ("allclose", "equal"),
    "aten::nonzero": ("nonzero", _TRUE),
    "aten::masked_select": ("masked_select", _TRUE),
    "aten::_unique2": ("unique", _DISTINCT),
    "aten::unique_consecutive": ("unique_consecutive", _DISTINCT),
    "aten::unique_dim": ("unique", _DISTINCT),
    "aten::unique_dim_consecutive": ("unique_consecutive", _DISTINCT),
    "aten::_coalesce": ("Tensor.coalesce", _DISTINCT),
    "aten::repeat_interleave": ("repeat_interleave", "each element 1"),
    "aten::bincount": ("bincount", _ZERO),
    "aten::_pack_padded_sequence": ("pack_padded_sequence", "every length the longest"),
    "aten::index": ("mask as an index", _TRUE),
    "aten::_unsafe_index": ("mask as an index", _TRUE),
    "aten::index_put": ("mask as an index", _TRUE),
    "aten::index_put_": ("mask as an index", _TRUE),
    "aten::_index_put_impl_": ("mask as an index", _TRUE),
    "aten::_unsafe_index_put": ("mask as an index", _TRUE),
    "Tensor.tolist": ("Tensor.tolist", _ZERO),
    "Tensor.numpy": ("Tensor.numpy", _ZERO),
    "torchvision::nms": ("torchvision.ops.nms", "every box taken as kept"),
}
"""What a program calls each read, and what ``shape_rules`` takes in place of the values.

``bool``, ``int`` and ``float`` of a tensor come down to ``Tensor.item``, in torch as well.
"""


@dataclass(frozen=True, slots=True)
class DataDependentRead:
    """One place where a program read values that its tensors do not have.

    Args:
        op: what it called, such as ``aten::nonzero``.
        filename: of the program's source.
        line: in that file.
        count: how often.
    """

    op: str
    filename: str
    line: int
    count: int

    @property
    def name(self) -> str:
        """What the program called."""
        return READS[self.op][0]

    @property
    def assumption(self) -> str:
        """What a dry run assumes the values to be."""
        return READS[self.op][1]

    def __str__(self) -> str:
        """As a compiler says where something is."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.filename}:{self.line}: {self.op} read values that are not there, {times}"


class DataDependentReads:
    """Counts them.

    Attributes:
        events: how often anything was counted.
        strict: whether one is an error.
    """

    def __init__(self) -> None:
        self.events = 0
        self.strict = False
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._lock = threading.Lock()

    def count(self, op: str) -> None:
        """Count one, at the innermost line of the program.

        Args:
            op: its name.

        Raises:
            AssumedValueError: ``strict`` is set.
        """
        place = current_line()
        if self.strict:
            filename, line = place
            called, assumption = READS[op]
            raise AssumedValueError(
                f"{filename}:{line}: {called} reads values that a dry run does not have "
                f"(assumed {assumption} otherwise): do not read them, or run without compute=False "
                "(--dry-run); without strict=True (--strict) the line is marked ?"
            )
        with self._lock:
            self._counts[(op, *place)] += 1
            self.events += 1

    def all(self) -> tuple[DataDependentRead, ...]:
        """All that were counted, in the order in which they first happened."""
        return tuple(
            DataDependentRead(*where, count) for where, count in self._counts.copy().items()
        )
