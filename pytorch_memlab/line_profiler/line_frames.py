"""Recorded lines as DataFrames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..columns import measured
from ..records import OF_VALUES, ApproximationKind, FunctionInfo, LineEntry, Report
from ..render.tables import column_parts

if TYPE_CHECKING:
    import pandas as pd
    from pandas.api.extensions import ExtensionArray

    Values = tuple[int | float | None, ...]


def tidy_frame(
    entries: Sequence[LineEntry], code_infos: Mapping[int, FunctionInfo]
) -> pd.DataFrame:
    """One row per device, function and line; see ``LineRecords.to_dataframe``."""
    import pandas as pd

    infos = [code_infos[entry.code_id] for entry in entries]
    frame = pd.DataFrame(
        {
            "device": [entry.device.name for entry in entries],
            "function": [info.qual_name for info in infos],
            "file": [info.filename for info in infos],
            "line": [entry.line for entry in entries],
            "code": [info.text_of(entry.line) for info, entry in zip(infos, entries, strict=True)],
            "hits": [entry.hits for entry in entries],
            "time": [entry.time for entry in entries],
            **{
                name: [getattr(entry, name) for entry in entries]
                for name in ("kept", "freed", "delta")
            },
        }
    )
    names = dict.fromkeys(name for entry in entries for name in entry.stats)
    statistics = pd.DataFrame(
        {name: _int_array([*map(measured(name), entries)]) for name in names},
        index=frame.index,
    )
    unknown = pd.DataFrame(_approximation_columns(entries), index=frame.index)
    return pd.concat([frame, statistics, unknown], axis=1)


def _approximation_columns(entries: Sequence[LineEntry]) -> dict[str, list[int]]:
    if not any(entry.approximations for entry in entries):
        return {}
    columns = {
        **{kind.value: frozenset({kind}) for kind in ApproximationKind if kind not in OF_VALUES},
        ApproximationKind.ASSUMED.value: OF_VALUES,
    }
    return {
        name: [
            sum(
                approximation.calls if name in _IN_CALLS else approximation.nbytes
                for approximation in entry.approximations
                if approximation.kind in kinds
            )
            for entry in entries
        ]
        for name, kinds in columns.items()
    }


_IN_CALLS = (ApproximationKind.ASSUMED.value, ApproximationKind.UNCOUNTED.value)


def line_frame(report: Report) -> pd.DataFrame:
    """The numbers of a report by ``(qual_name, line)``, the maxima of functions and devices."""
    import pandas as pd

    rows: dict[tuple[str, int], Values] = {}
    for table in report.tables:
        for line, values in table.rows.items():
            key = (table.function.qual_name, line)
            rows[key] = _maxima(rows[key], values) if key in rows else values
    keys = sorted(rows)
    index = pd.MultiIndex.from_arrays(
        [[name for name, _ in keys], [line for _, line in keys]], names=["qual_name", "line"]
    )
    columns = pd.MultiIndex.from_tuples([column_parts(column) for column in report.columns])
    # With NaN in place of None a column stays numeric, and one without gaps an int column.
    data = [[math.nan if value is None else value for value in rows[key]] for key in keys]
    return pd.DataFrame(data, index=index, columns=columns)


def _int_array(values: Sequence[int | None]) -> ExtensionArray:
    import pandas as pd

    return pd.array(values, dtype="Int64" if None in values else "int64")


def _maxima(values: Values, other: Values) -> Values:
    return tuple(
        max((value for value in pair if value is not None), default=None)
        for pair in zip(values, other, strict=True)
    )
