"""Finished reports as text, HTML, or colour in a terminal, profiles as JSON: one file each."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import PurePath

from ..errors import UsageError
from ..records import Report
from . import html, text

_RENDERERS: dict[str, Callable[[Report], str]] = {
    ".txt": text.render,
    ".html": html.render,
}


def renderer_for(
    path: str | PathLike[str], otherwise: Callable[[Report], str] | None = None
) -> Callable[[Report], str]:
    """The renderer that a file's name asks for.

    >>> renderer_for("profile.html").__module__
    'pytorch_memlab.render.html'
    """
    suffix = PurePath(path).suffix.lower()
    renderer = _RENDERERS.get(suffix, otherwise)
    if renderer is None:
        endings = ", ".join([*_RENDERERS, ".json"])
        raise UsageError(f"cannot tell the format of {path}: end it in {endings}")
    return renderer
