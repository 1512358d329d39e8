"""A report as HTML: offline, with a bar for each value."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Any

from pytorch_memlab.records import FunctionTable, Report
from pytorch_memlab.render import json
from pytorch_memlab.render.cells import (
    cell,
    column_parts,
    column_ranges,
    headings,
    no_data,
    source_lines,
)
from pytorch_memlab.render.gaps import line_notes, mark, table_notes

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style_render import CSSDict

# Pale enough for black digits to be read on them.
_COLOURS = ("#9dbff0", "#f7bd90", "#a5dba0", "#e8a3a3", "#c6b1e0", "#c9ad98", "#edb8df", "#c4c4c4")

_NEGATIVE = "#d0d7de"

# Styler says these with the table's id, which beats the classes of a notebook's dark theme.
_TABLE_STYLES: list[CSSDict] = [
    {
        "selector": "",
        "props": [
            ("border-collapse", "collapse"),
            ("background-color", "#ffffff"),
            ("color", "#1f2328"),
            ("font", "13px/1.45 monospace"),
            ("margin", "0"),
        ],
    },
    {"selector": "tr", "props": [("background-color", "#ffffff")]},
    {
        "selector": "th",
        "props": [
            ("text-align", "right"),
            ("font-weight", "600"),
            ("color", "#57606a"),
            ("border", "1px solid #ffffff"),
            ("border-width", "0 3px 1px 0"),
            ("padding", "0 8px"),
        ],
    },
    {"selector": "thead tr:last-child th", "props": [("border-bottom", "1px solid #d0d7de")]},
    {
        "selector": "td",
        "props": [
            ("text-align", "right"),
            ("white-space", "pre"),
            ("color", "#1f2328"),
            ("border", "1px solid #ffffff"),
            ("border-width", "0 3px 1px 0"),
            ("background-clip", "padding-box"),
            ("padding", "1px 8px"),
        ],
    },
]

_HEADING = "font:600 14px/1.4 monospace;color:#1f2328;margin:12px 0 6px"
_NOTE = "color:#1f2328;margin:10px 0 0"
_LINE_NOTE = "color:#57606a;margin:4px 0 0"

# Without a width the digits stay where they are in unmarked rows.
_MARK = "display:inline-block;width:0;text-align:left;font-weight:600;color:#9a3b00;cursor:help"

_BLOCK = (
    "background:#ffffff;color:#1f2328;color-scheme:light;"
    "padding:8px 12px;overflow-x:auto;font:13px/1.45 sans-serif"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ margin: 0; background: #ffffff; }}</style>
</head>
<body>
{body}
</body>
</html>
"""


def render(report: Report) -> str:
    """The report as a page of its own, which loads nothing from elsewhere.

    Args:
        report: what was measured.

    Returns:
        An HTML document.
    """
    names = dict.fromkeys(table.function.qual_name for table in report.tables)
    title = f"Line profile of {', '.join(names)}" if names else "Line profile"
    return _PAGE.format(title=escape(title), body=fragment(report))


def fragment(report: Report) -> str:
    """The report as a piece of a page, as a notebook shows it.

    Args:
        report: what was measured.

    Returns:
        One ``div`` element.
    """
    if report.tables:
        parts, notes = _tables(report), report.notes
    else:
        parts, notes = [], no_data(report)
    parts += [f'<p style="{_NOTE}">{escape(note)}</p>' for note in notes]
    return f'<div style="{_BLOCK}">\n' + "\n".join(parts) + "\n</div>"


def _tables(report: Report) -> list[str]:
    """Each table under its heading.

    The ids come from the content: equal reports give equal HTML, others on one page do not mix.
    """
    digest = hashlib.sha256(json.render(report).encode()).hexdigest()[:10]
    ranges = column_ranges(report)
    return [
        f'<h3 style="{_HEADING}">{escape(heading)}</h3>\n'
        + _table(table, report.columns, ranges, f"{digest}_{place}")
        + "".join(f'\n<p style="{_LINE_NOTE}">{escape(note)}</p>' for note in table_notes(table))
        for place, (heading, table) in enumerate(zip(headings(report), report.tables, strict=True))
    ]


def _table(
    table: FunctionTable, columns: Sequence[str], ranges: Sequence[tuple[float, float]], uuid: str
) -> str:
    style = _frame(table, columns).style.set_uuid(uuid).hide(axis="index")
    style = style.set_table_styles(_table_styles(len(columns)))
    style = style.format({column_parts(column): partial(_cell, column) for column in columns})
    style = style.format(partial(_line, table), subset=[column_parts("line")])
    style = style.format(escape="html", subset=[column_parts("code")])
    for number, (column, (least, largest)) in enumerate(zip(columns, ranges, strict=True)):
        if least == largest == 0:
            continue
        colour = _COLOURS[number % len(_COLOURS)]
        style = style.bar(
            subset=[column_parts(column)],
            color=[_NEGATIVE, colour],
            vmin=least,
            vmax=largest,
            align="mid" if least else "left",
        )
    return style.to_html(sparse_columns=False)


def _frame(table: FunctionTable, columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    lines = source_lines(table)
    blank = (None,) * len(columns)
    rows = [table.rows.get(line, blank) for line in lines]
    data: dict[tuple[str, str, str], pd.Series[Any]] = {
        column_parts(column): pd.Series([row[place] for row in rows], dtype="float64")
        for place, column in enumerate(columns)
    }
    data[column_parts("line")] = pd.Series(list(lines), dtype="int64")
    data[column_parts("code")] = pd.Series(list(lines.values()), dtype="object")
    return pd.DataFrame(data)


def _cell(column: str, value: float) -> str:
    if isnan(value):
        return ""
    return cell(column, value if column == "time" else int(value))


def _line(table: FunctionTable, line: int) -> str:
    gaps = table.gaps.get(line, ())
    if not gaps:
        return str(line)
    said = escape("\n".join(line_notes(gaps)))
    return f'{line}<span style="{_MARK}" title="{said}">{mark(gaps)}</span>'


def _table_styles(columns: int) -> list[CSSDict]:
    line, code = f".col{columns}", f".col{columns + 1}"
    return [
        *_TABLE_STYLES,
        {"selector": f"td{line}", "props": [("color", "#8c959f")]},
        {"selector": f"td{code}, th{code}", "props": [("text-align", "left")]},
    ]
