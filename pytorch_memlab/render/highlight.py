"""Python code as HTML: a short element around each keyword, comment, string and name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .._common.quoted import visible

if TYPE_CHECKING:
    from markupsafe import Markup


def highlighted(lines: Sequence[str]) -> list[Markup]:
    """Lines of code, each complete in itself."""
    from markupsafe import Markup

    found: list[list[str]] = [[]]
    for tag, text in _pieces("\n".join(visible(line.rstrip(), "\t") for line in lines)):
        for number, part in enumerate(text.split("\n")):
            if number:
                found.append([])
            if part:
                code = escape(part, quote=False)
                found[-1].append(f"<{tag}>{code}</{tag}>" if tag and part.strip() else code)
    return [Markup("".join(parts)) for parts in found]


def _pieces(code: str) -> Iterator[tuple[str, str]]:
    """Pieces of code with their elements; those of one element that follow each other are one."""
    from pygments.lexers.python import PythonLexer
    from pygments.token import Comment, Keyword, Name, Operator, String

    elements: list[tuple[Any, str]] = [
        (Comment, "i"),
        (String, "u"),
        (Keyword, "b"),
        (Operator.Word, "b"),
        (Name.Function, "var"),
        (Name.Class, "var"),
    ]
    last, gathered = "", ""
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(code):
        tag = next((tag for known, tag in elements if kind in known), "")
        if tag != last and gathered:
            yield last, gathered
            gathered = ""
        last = tag
        gathered += text
    if gathered:
        yield last, gathered
