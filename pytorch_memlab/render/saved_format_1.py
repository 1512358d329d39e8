"""Tables that releases before format 2 saved as JSON, read: see ``render.saved_profile``."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ..errors import UsageError
from ..records import DeviceInfo, FunctionTable, Report
from .checked_json import Checked, DamagedError
from .saved_profile import read_approximation, read_function, refuse_constant

FORMAT: Final = 1


def is_of_format_1(text: str) -> bool:
    """True if a text begins like a saved profile of format 1."""
    return re.match(r'\s*\{\s*"format"\s*:\s*1\b', text) is not None


def load(text: str) -> Report:
    """The report in the text."""
    try:
        data = json.loads(text, parse_constant=refuse_constant)
        saved_format = data["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError("not a profile saved by pytorch_memlab as JSON") from error
    if saved_format != FORMAT:
        raise UsageError(f"saved profile of format {saved_format!r}; known is format {FORMAT}")
    try:
        return _report(Checked(data))
    except DamagedError as error:
        raise UsageError(f"damaged saved profile: {error}") from error


def _report(data: Checked) -> Report:
    columns = data.texts("columns")
    tables = tuple(_table(one, len(columns)) for one in data.objects("tables"))
    return Report(columns, tables, data.texts("notes"))


def _table(data: Checked, width: int) -> FunctionTable:
    rows = {}
    for line, values in data.lists_by_number("rows").items():
        if len(values) != width:
            raise DamagedError(f"line {line} has {len(values)} values for {width} columns")
        rows[line] = tuple(_value(data, value) for value in values)
    approximations = {
        line: tuple(read_approximation(data.object("gaps", one)) for one in found)
        for line, found in (data.lists_by_number("gaps") if data.has("gaps") else {}).items()
    }
    device = data.object("device").record(DeviceInfo)
    return FunctionTable(read_function(data.object("function")), device, rows, approximations)


def _value(data: Checked, value: Any) -> float | None:
    if value is None:
        return None
    check = data.seconds if isinstance(value, float) else data.number
    return check("rows", value)
