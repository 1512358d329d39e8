"""The columns of tables of lines: one record for each, and one for every field of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from typing import Final

from .memory_fields import FIELDS
from .records import LineEntry

Value = Callable[[LineEntry], "int | float | None"]


class Unit(Enum):
    """The unit of the values of a column."""

    BYTES = "bytes"
    SECONDS = "seconds"
    NUMBER = "number"


class OverHits(Enum):
    """The one value of a line that ran several times, or on several GPUs."""

    MAXIMUM = "maximum"
    MEAN = "mean"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Column:
    """A column that tables of lines can have."""

    name: str  # its head; one of three parts has three rows
    value: Value  # of a line on a device; None where that was not measured
    unit: Unit
    over_hits: OverHits
    text: str  # what it shows, as ``run --help`` and the documentation say it


def measured(name: str) -> Callable[[LineEntry], int | None]:
    """A field of ``torch.cuda.memory_stats()``, or what ``scopes/intervals.py`` measures."""
    return partial(_measured, name=name)


def _measured(entry: LineEntry, name: str) -> int | None:
    # A device without any fields was not used: 0.
    return entry.stats.get(name) if entry.stats else 0


COLUMNS: Final = (
    Column(
        "peak",
        measured("active_bytes.all.peak"),
        Unit.BYTES,
        OverHits.MAXIMUM,
        "the most memory in use while the line ran",
    ),
    Column(
        "reserved",
        measured("reserved_bytes.all.peak"),
        Unit.BYTES,
        OverHits.MAXIMUM,
        "the most memory that PyTorch took from the GPU",
    ),
    Column(
        "current",
        measured("active_bytes.all.current"),
        Unit.BYTES,
        OverHits.MAXIMUM,
        "memory in use when the line ended",
    ),
    Column("hits", attrgetter("hits"), Unit.NUMBER, OverHits.SUM, "how often the line ran"),
    Column(
        "kept",
        attrgetter("kept"),
        Unit.BYTES,
        OverHits.MEAN,
        "what a hit allocated, calls included, and did not free",
    ),
    Column(
        "freed",
        attrgetter("freed"),
        Unit.BYTES,
        OverHits.MEAN,
        "what a hit freed that was in use before",
    ),
    Column("delta", attrgetter("delta"), Unit.BYTES, OverHits.MEAN, "kept less freed"),
    Column(
        "temporary",
        measured("temporary"),
        Unit.BYTES,
        OverHits.MAXIMUM,
        "how far above the larger of its start and its end the line went",
    ),
    Column(
        "time",
        attrgetter("time"),
        Unit.SECONDS,
        OverHits.SUM,
        "seconds in the line, calls included",
    ),
)
"""Those that are no fields, and fields under a short name."""

_BY_NAME: Final = {column.name: column for column in COLUMNS}
KNOWN_COLUMNS: Final = frozenset((*_BY_NAME, *FIELDS))


@lru_cache(maxsize=4096)
def column_of(name: str) -> Column:
    """A column by its name; of a field, also of one that only another release of PyTorch has."""
    column = _BY_NAME.get(name)
    if column is not None:
        return column
    unit = Unit.BYTES if "bytes" in name.partition(".")[0] else Unit.NUMBER
    return Column(name, measured(name), unit, OverHits.MAXIMUM, f"the field {name}")
