"""The verdicts of ``fit`` as a table for a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from . import fit

if TYPE_CHECKING:
    from ..fitting.report import FitReport
    from ..fitting.verdict import Verdict

BLOCK: Final = "font:13px/1.5 sans-serif;overflow-x:auto"
TABLE: Final = "border-collapse:collapse;font:13px/1.5 monospace;margin:6px 0"
CELL: Final = "padding:1px 10px;text-align:right;border:0"
NAME: Final = "padding:1px 10px;text-align:left;border:0"
NOTE: Final = "opacity:.75;margin:2px 0"
"""Styles of the block, its table, numbers, names and notes."""
_BAR: Final = f"{NAME};min-width:220px"
_FITS, _LACKS, _CONTEXT = "#2b58", "#e448", "#8888"
"""Translucent, so that the text of a dark theme and of a light one can be read on them."""


def fragment(report: FitReport) -> str:
    """The verdicts as HTML: a row for each GPU, with a bar of its memory."""
    heading, *lines = fit.heading(report)
    rows = "".join(map(_row, report.verdicts))
    notes = "".join(
        f'<p style="{NOTE}">{escape(note)}</p>'
        for note in (*fit.failures(report), *fit.notes(report))
    )
    about = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return (
        f'<div style="{BLOCK}"><div><b>{escape(heading)}</b></div>{about}'
        f'<table style="{TABLE}"><thead>{_head()}</thead><tbody>{rows}</tbody></table>'
        f"{notes}</div>"
    )


def _head() -> str:
    cells = [f'<th style="{NAME}">GPU</th>']
    cells += [f'<th style="{CELL}">{name}</th>' for name in fit.HEADS]
    cells += [f'<th style="{NAME}">fits</th>', f'<th style="{NAME}">share of the memory</th>']
    return f"<tr>{''.join(cells)}</tr>"


def _row(verdict: Verdict) -> str:
    cells = [f'<td style="{NAME}">{escape(printable(verdict.name))}</td>']
    cells += [f'<td style="{CELL}">{escape(size)}</td>' for size in fit.sizes(verdict)]
    cells += [f'<td style="{NAME}">{fit.answer(verdict)}</td>', bar(verdict)]
    return f"<tr>{''.join(cells)}</tr>"


def bar(verdict: Verdict | None) -> str:
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
