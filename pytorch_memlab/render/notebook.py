"""The base of all HTML in notebooks: its ground, its scrolling, its bars.

Note [HTML in notebooks]

JupyterLab shows the outputs of a notebook that is not trusted, such as a fresh clone, through a
sanitizer: it drops ``<style>``, roles, and of inline styles every value that it cannot check,
``var(...)`` and ``position:sticky`` among them. So all styles are inline, and nothing depends on
those values: without them text and ground are the theme's own, dark or light, bars let the ground
shine through, and quieter text is translucent. No text has its own colour, as no colour is
readable on both a white and a black ground.

With them, ground and text are the theme's own too, by its variables: the code, which stays at the
left while the values scroll below it, has to cover them. GitHub drops all styles: what is left is
a table with a row for each line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

_GROUND = (
    "var(--vscode-editor-background,var(--colab-primary-surface-color,"
    "var(--jp-layout-color0,Canvas)))"
)
_INK = (
    "var(--vscode-editor-foreground,var(--colab-primary-text-color,"
    "var(--jp-content-font-color1,CanvasText)))"
)
_BLOCK = (
    f"padding:8px 12px;font:13px/1.45 sans-serif;--g:{_GROUND};background:var(--g);color:{_INK}"
)
_HEADING = "font:600 14px/1.4 monospace;margin:12px 0 6px"
_SUMMARY = "font-weight:600;margin:0 0 8px"
_PARAGRAPH = "margin:6px 0 0"
_LIST = "margin:4px 0 0;padding:0 0 0 20px"
_PLAIN = "font:13px/1.45 monospace;margin:0;background:transparent;white-space:pre"

_TABLE = (
    "border-collapse:separate;border-spacing:0;margin:0;table-layout:auto;"
    "font:13px/1.45 monospace;text-align:right"
)
_HEAD = "padding:0 12px 3px 0;font-weight:600;white-space:nowrap;border-bottom:1px solid #8888"
_VALUE = "padding:0 12px 0 0;white-space:nowrap"
_TEXT = "padding:0 12px 0 0;text-align:left;white-space:pre"
_BAR_WIDTH = 110
"""Pixels of the longest bar."""

STAYS = "position:sticky;left:0;background:var(--g)"
"""A cell that stays at the left while the others scroll; in an untrusted notebook it is first."""

BAR = "#38f6"
PEAK = "#d9730d"


def block(parts: Iterable[str]) -> str:
    """Pieces of HTML as one output."""
    return f'<div style="{_BLOCK}">\n' + "\n".join(parts) + "\n</div>"


def heading(text: str) -> str:
    """The heading above a table."""
    return f'<h3 style="{_HEADING}">{escape(text)}</h3>'


def summary(text: str) -> str:
    """The first sentence of an output."""
    return f'<p style="{_SUMMARY}">{escape(text)}</p>'


def paragraph(text: str) -> str:
    """A sentence below a table."""
    return f'<p style="{_PARAGRAPH}">{escape(text)}</p>'


def plain(text: str, label: str) -> str:
    """Text as it is."""
    return scrolling(f'<pre style="{_PLAIN}">{escape(text)}</pre>', label)


def scrolling(content: str, label: str) -> str:
    """HTML that scrolls to the right where it is too wide, by keys too."""
    name = escape(label)
    return (
        f'<div style="overflow-x:auto" tabindex=0 role=region aria-label="{name}">{content}</div>'
    )


def folded(title: str, notes: Iterable[str]) -> str:
    """Notes that a click shows."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<details style="{_PARAGRAPH}"><summary>{escape(title)}</summary>'
        f'<ul style="{_LIST}">{items}</ul></details>'
    )


def table(heads: Sequence[str], rows: Iterable[str], texts: Collection[str] = ()) -> str:
    """A table whose first column has the names of the rows."""
    first, *others = heads
    cells = f'<th style="{_HEAD};{STAYS};text-align:left">{first}</th>'
    for one in others:
        cells += f'<th style="{_HEAD}{";text-align:left" if one in texts else ""}">{one}</th>'
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table style="{_TABLE}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'


def name_cell(name: str, more: str = "") -> str:
    """The cell that names a row; it stays at the left."""
    return f'<th style="{_TEXT};{STAYS};font-weight:400{more}">{escape(name, quote=False)}</th>'


def text_cell(content: str, more: str = "") -> str:
    """Text, such as code."""
    return f'<td style="{_TEXT}{more}">{content}</td>'


def value_cell(text: str, more: str = "") -> str:
    """A number."""
    return f'<td style="{_VALUE}{more}">{text}</td>'


def bar_cell(text: str, share: float) -> str:
    """A number with a bar behind it."""
    bar = f"min-width:{_BAR_WIDTH}px;box-shadow:inset {_BAR_WIDTH * share:.0f}px 0 {BAR}"
    return f'<td style="{_VALUE};{bar}">{text}</td>'
