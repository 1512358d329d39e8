"""The columns that a table of lines can have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .._common.text.quoted import quoted
from ..columns import COLUMNS, KNOWN_COLUMNS
from ..errors import UnknownColumnError, UsageError
from ..records import LineEntry

DEFAULT_COLUMNS = ("active_bytes.all.peak", "reserved_bytes.all.peak")


def checked_columns(
    columns: str | Iterable[str] | None, entries: Iterable[LineEntry] = ()
) -> tuple[str, ...]:
    """The columns asked for, each once; the fields of ``entries`` are known as well."""
    if columns is None:
        return DEFAULT_COLUMNS
    names = tuple(dict.fromkeys([columns] if isinstance(columns, str) else columns))
    if not names:
        raise UsageError(f"no columns given; the default is columns={DEFAULT_COLUMNS}")
    if KNOWN_COLUMNS.issuperset(names):
        return names
    all_names = KNOWN_COLUMNS.union(*(entry.stats for entry in entries))
    for name in names:
        if name not in all_names:
            raise UnknownColumnError(_unknown(name, all_names))
    return names


def _unknown(name: object, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(names), n=4)
    if near:
        return f"unknown column {quoted(name)}: did you mean {' or '.join(near)}?"
    return (
        f"unknown column {quoted(name)}: a column is a field of torch.cuda.memory_stats() such as "
        f"{DEFAULT_COLUMNS[0]}, or one of {', '.join(column.name for column in COLUMNS)}"
    )
