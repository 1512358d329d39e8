"""Tables that releases before format 2 saved as JSON, read: see ``render.saved_profile``."""

from __future__ import annotations

import json
import re
from typing import TypeVar

from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    FunctionTable,
    Report,
)

FORMAT = 1

_TOO_LARGE = 2**63
"""Counters are of 64 bits."""

T = TypeVar("T")


def is_of_format_1(text: str) -> bool:
    """True if a text begins like a saved profile of format 1."""
    return re.match(r'\s*\{\s*"format"\s*:\s*1\b', text) is not None


def load(text: str) -> Report:
    """The report in the text."""
    try:
        data = _of(dict, json.loads(text, parse_constant=_refuse_constant))
        saved_format = data["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError("not a profile saved by pytorch_memlab as JSON") from error
    if saved_format != FORMAT:
        raise UsageError(f"saved profile of format {saved_format!r}; known is format {FORMAT}")
    try:
        return _report(data)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"damaged saved profile: {error!r}") from error


def _report(data: dict[str, object]) -> Report:
    columns = _texts(data["columns"])
    tables = tuple(_table(_of(dict, table), len(columns)) for table in _of(list, data["tables"]))
    return Report(columns, tables, _texts(data["notes"]))


def _table(data: dict[str, object], width: int) -> FunctionTable:
    function, device, rows = (_of(dict, data[name]) for name in ("function", "device", "rows"))
    source = function["source"]
    return FunctionTable(
        FunctionInfo(
            _of(str, function["qual_name"]),
            _of(str, function["filename"]),
            _of(int, function["first_line"]),
            None if source is None else _texts(source),
            tuple(_lines(lines) for lines in _of(list, function.get("folded", []))),
        ),
        DeviceInfo(
            _of(str, device["name"]),
            _of(str, device["description"]),
            _of(bool, device["simulated"]),
        ),
        {int(line): _values(values, width) for line, values in rows.items()},
        {
            int(line): tuple(
                _approximation(_of(dict, approximation))
                for approximation in _of(list, approximations)
            )
            for line, approximations in _of(dict, data.get("gaps", {})).items()
        },
    )


def _lines(data: object) -> tuple[int, int]:
    first, last = _of(list, data)
    return _of(int, first), _of(int, last)


def _approximation(data: dict[str, object]) -> Approximation:
    return Approximation(
        ApproximationKind(data["kind"]),
        _of(str, data["name"]),
        _of(int, data["calls"]),
        _of(int, data["nbytes"]),
        _of(str, data["assumption"]),
        _of(str, data["place"]),
        _of(str, data.get("unknown", "")),
    )


def _values(values: object, width: int) -> tuple[int | float | None, ...]:
    numbers = tuple(_number(value) for value in _of(list, values))
    if len(numbers) != width:
        raise ValueError(f"{len(numbers)} values for {width} columns")
    return numbers


def _number(value: object) -> int | float | None:
    if value is None:
        return None
    number = value if isinstance(value, int) else _of(float, value)
    if not abs(number) < _TOO_LARGE:
        raise ValueError("a number that no counter has")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _texts(values: object) -> tuple[str, ...]:
    return tuple(_of(str, value) for value in _of(list, values))


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} where {kind.__name__} was expected")
    return value
