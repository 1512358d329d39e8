"""The answers of ``fit`` as tables for a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from . import curve, fit

if TYPE_CHECKING:
    from ..fitting.grid import GridReport
    from ..fitting.verdict import FitReport, Verdict

_BLOCK: Final = "font:13px/1.5 sans-serif;overflow-x:auto"
_TABLE: Final = "border-collapse:collapse;font:13px/1.5 monospace;margin:6px 0"
_CELL: Final = "padding:1px 10px;text-align:right;border:0"
_NAME: Final = "padding:1px 10px;text-align:left;border:0"
_NOTE: Final = "opacity:.75;margin:2px 0"
_BAR: Final = f"{_NAME};min-width:220px"
_FITS, _LACKS, _CONTEXT = "#2b58", "#e448", "#8888"
"""Translucent, so that the text of a dark theme and of a light one can be read on them."""


def fragment(report: FitReport) -> str:
    """The verdicts as HTML: a row for each GPU, with a bar of its memory."""
    heading, *lines = fit.heading(report)
    rows = [_row(one.name, fit.sizes(one), fit.answer(one), one) for one in report.verdicts]
    notes = map(_note, (*fit.failures(report), *fit.notes(report)))
    return _block(heading, [*map(_line, lines), _table(fit.HEADS, "fits", rows), *notes])


def grid_fragment(report: GridReport) -> str:
    """The largest values as HTML: a row for each GPU, with a bar of its memory."""
    if report.problem is not None:
        return _block(curve.heading(report), [_note(curve.refusal(report))])
    parts = []
    for combination in report.combinations:
        rows = [
            _row(one.name, curve.cells_of(one), curve.next_value(one), one.best)
            for one in report.of(combination)
        ]
        parts += [_line(curve.title(report, combination)), _table(curve.HEADS, "next", rows)]
        parts += map(_note, curve.curve_lines(report, combination))
    return _block(curve.heading(report), [*parts, *map(_note, curve.notes(report))])


def _block(heading: str, parts: Iterable[str]) -> str:
    return f'<div style="{_BLOCK}"><div><b>{escape(heading)}</b></div>{"".join(parts)}</div>'


def _line(text: str) -> str:
    return f"<div>{escape(text)}</div>"


def _note(text: str) -> str:
    return f'<p style="{_NOTE}">{escape(text)}</p>'


def _table(heads: Sequence[str], answer: str, rows: Iterable[str]) -> str:
    styled = [(_NAME, "GPU"), *((_CELL, head) for head in heads)]
    styled += [(_NAME, answer), (_NAME, "share of the memory")]
    cells = "".join(f'<th style="{style}">{head}</th>' for style, head in styled)
    return (
        f'<table style="{_TABLE}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(name: str, cells: Sequence[str], answer: str, verdict: Verdict | None) -> str:
    styled = [(_NAME, printable(name)), *((_CELL, cell) for cell in cells), (_NAME, answer)]
    row = "".join(f'<td style="{style}">{escape(text)}</td>' for style, text in styled)
    return f"<tr>{row}{_bar(verdict)}</tr>"


def _bar(verdict: Verdict | None) -> str:
    """A cell with what the context and the peak take of the GPU: all of it where memory lacks."""
    if verdict is None or verdict.fits is None:
        return f'<td style="{_BAR}"></td>'
    needed = verdict.taken + verdict.reserved_peak
    share = needed / verdict.capacity
    width = 100 / max(share, 1.0)  # of the GPU, in percent of the bar
    context = width * verdict.taken / verdict.capacity
    end = width * share
    colour = _FITS if verdict.fits else _LACKS
    ground = (
        f"background:linear-gradient(90deg,{_CONTEXT} 0 {context:.1f}%,{colour} 0 {end:.1f}%,"
        f"#0000 0)"
    )
    title = f"{prose_size(verdict.reserved_peak)} and {prose_size(verdict.taken)} of context"
    return f'<td style="{_BAR};{ground}" title="{title}">{100 * share:.0f} %</td>'
