"""Reports as HTML for a notebook: offline, every text from outside escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from ..utils import readable_size
from .cells import note, notes, signed, size_text, sums
from .records import CATEGORIES, Reconciliation, TensorRow

if TYPE_CHECKING:
    import torch

    from .differences import Difference
    from .snapshot import MemorySnapshot

# Styles name no colour of text or ground: see Note [HTML in notebooks].
_BLOCK = "padding:8px 12px;overflow-x:auto;font:13px/1.45 monospace"
_HEADING = "font:600 14px/1.4 monospace;margin:12px 0 6px"
_TABLE = "border-collapse:collapse;margin:0"
_TEXT = "text-align:left;white-space:pre;padding:1px 12px 1px 0;border:0"
_RIGHT = "text-align:right;white-space:pre;padding:1px 8px;border:0"
_NOTE = "text-align:left;white-space:pre;padding:1px 8px;opacity:.7;border:0"
_STRONG = ";font-weight:600;border-top:1px solid #8888"
_ROW = "background:transparent"
_BAR = "#38f6"


def snapshot_fragment(snapshot: MemorySnapshot) -> str:
    """A snapshot as a piece of a page, as a notebook shows it.

    Args:
        snapshot: what to say.

    Returns:
        One ``div`` element.
    """
    parts = [part for device in snapshot.devices() for part in _device(snapshot, device)]
    return _block(parts or ["no tensors"])


def difference_fragment(difference: Difference) -> str:
    """What changed, as a piece of a page.

    Args:
        difference: between two snapshots.

    Returns:
        One ``div`` element.
    """
    if not difference.changes:
        return _block(["no change"])
    most = max(abs(change.delta) for change in difference.changes)
    head = _cells((("", _TEXT), ("", _TEXT), ("device", _TEXT)), _STRONG)
    head += _cells(((name, _RIGHT) for name in ("before", "after", "difference")), _STRONG)
    rows = [f'<tr style="{_ROW}">{head}</tr>']
    for change in difference.changes:
        cells = _cells(((change.kind, _NOTE), (change.name, _TEXT), (change.device, _TEXT)))
        cells += _cells((readable_size(n), _RIGHT) for n in (change.before, change.after))
        rows.append(_row(cells + _bar(signed(change.delta), abs(change.delta), most)))
    return _block([_table(rows)])


def text_fragment(text: str) -> str:
    """Plain text as a piece of a page."""
    return _block([f'<pre style="margin:0;background:transparent">{escape(text)}</pre>'])


def _device(snapshot: MemorySnapshot, device: torch.device) -> Iterator[str]:
    description = dict(snapshot.descriptions).get(str(device))
    heading = f"{device}: {description}" if description else str(device)
    yield f'<h3 style="{_HEADING}">{escape(heading)}</h3>'
    here = [row for row in snapshot.rows if row.device == device]
    most = max((row.nbytes for row in here), default=0)
    totals = snapshot.totals(device)
    rows = []
    for category in CATEGORIES:
        members = [row for row in here if row.category == category]
        if members:
            total = (readable_size(totals[category]), _RIGHT)
            rows.append(_row(_cells(((category, _TEXT), ("", _TEXT), total), _STRONG)))
            rows += [_tensor(row, most) for row in members]
    yield _table(rows)
    for record in snapshot.reconciliations:
        if record.device == device:
            yield from _reconciliation(record)


def _tensor(row: TensorRow, most: int) -> str:
    cells = _cells(((f"  {row.name}", _TEXT), (size_text(row), _RIGHT)))
    return _row(
        cells + _bar(readable_size(row.nbytes), row.nbytes, most) + _cells(((note(row), _NOTE),))
    )


def _reconciliation(record: Reconciliation) -> Iterator[str]:
    rows = []
    for sign, what, nbytes in sums(record):
        style = _STRONG if sign == "=" else ""
        rows.append(
            _row(_cells(((f"{sign or ' '} {what}", _TEXT), (readable_size(nbytes), _RIGHT)), style))
        )
    yield f'<div style="height:10px"></div>{_table(rows)}'
    for text in notes(record):
        yield f'<p style="margin:6px 0 0">{escape(text)}</p>'


def _block(parts: Iterable[str]) -> str:
    return f'<div style="{_BLOCK}">\n' + "\n".join(parts) + "\n</div>"


def _table(rows: Iterable[str]) -> str:
    return f'<table style="{_TABLE}">\n' + "\n".join(rows) + "\n</table>"


def _row(cells: str) -> str:
    return f'<tr style="{_ROW}">{cells}</tr>'


def _cells(texts: Iterable[tuple[str, str]], more: str = "") -> str:
    return "".join(f'<td style="{style}{more}">{escape(text)}</td>' for text, style in texts)


def _bar(text: str, share: int, most: int) -> str:
    """A size, with a bar behind it for its share of the largest one."""
    percent = 100 * share / most if most else 0
    colour = f"linear-gradient(90deg,{_BAR} {percent:.1f}%,transparent {percent:.1f}%)"
    return f'<td style="{_RIGHT};min-width:110px;background:{colour}">{escape(text)}</td>'
