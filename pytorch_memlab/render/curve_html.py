"""The largest values that fit on GPUs, as a table for a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .._common.quoted import printable
from . import curve
from .fit_html import BLOCK, CELL, NAME, NOTE, TABLE, bar

if TYPE_CHECKING:
    from ..fitting.grid import Answer, GridReport


def fragment(report: GridReport) -> str:
    """The answers as HTML: a row for each GPU, with a bar of its memory."""
    parts = [f"<div><b>{escape(curve.heading(report))}</b></div>"]
    if report.problem is not None:
        parts.append(_note(curve.refusal(report)))
    else:
        for combination in report.combinations:
            parts.append(f"<div>{escape(curve.title(report, combination))}</div>")
            parts.append(_table(report.of(combination)))
            parts += map(_note, curve.curve_lines(report, combination))
        parts += map(_note, curve.notes(report))
    return f'<div style="{BLOCK}">{"".join(parts)}</div>'


def _table(answers: tuple[Answer, ...]) -> str:
    heads = [f'<th style="{NAME}">GPU</th>']
    heads += [f'<th style="{CELL}">{name}</th>' for name in curve.HEADS]
    heads += [f'<th style="{NAME}">{name}</th>' for name in ("next", "share of the memory")]
    return (
        f'<table style="{TABLE}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(map(_row, answers))}</tbody></table>"
    )


def _row(answer: Answer) -> str:
    cells = [f'<td style="{NAME}">{escape(printable(answer.name))}</td>']
    cells += [f'<td style="{CELL}">{escape(cell)}</td>' for cell in curve.cells_of(answer)]
    cells += [f'<td style="{NAME}">{escape(curve.next_value(answer))}</td>', bar(answer.best)]
    return f"<tr>{''.join(cells)}</tr>"


def _note(text: str) -> str:
    return f'<p style="{NOTE}">{escape(text)}</p>'
