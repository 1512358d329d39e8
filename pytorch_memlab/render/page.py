"""Pages of fragments: self-contained HTML that loads nothing and asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from .._common.process.ipython import file_name
from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable, visible
from .._common.text.shared_paths import shown
from ..utils import readable_size
from .rows import place, source_line

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = "templates"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a page."""

    html: str
    style: str = ""
    scripts: tuple[str, ...] = ()  # names of its scripts, which the page has once too
    # fragments that its elements have in them; their scripts run first
    parts: tuple[Fragment, ...] = ()

    def with_parts(self) -> list[Fragment]:
        """All fragments whose style and script it needs, itself last."""
        return [*(fragment for part in self.parts for fragment in part.with_parts()), self]


def page(title: str, fragments: Sequence[Fragment], heading: str = "") -> str:
    """A whole page, light or dark as the system of the reader."""
    parts = [part for fragment in fragments for part in fragment.with_parts()]
    styles = dict.fromkeys(["page.css", *(part.style for part in parts if part.style)])
    scripts = dict.fromkeys(name for part in parts for name in part.scripts)
    return fill(
        "page.html",
        title=printable(title),
        heading=printable(heading or title),
        styles=[asset(name) for name in styles],
        scripts=[asset(name) for name in scripts],
        fragments=[fragment.html for fragment in fragments],
    )


def fill(template: str, **values: Any) -> str:
    """A template with its values, of which each text is made visible and escaped."""
    return _environment().get_template(template).render(**values)


def notebook_text(text: str, label: str) -> str:
    """A text as it is, for a notebook."""
    return fill("notebook_text.html", text=text, label=label)


def asset(name: str) -> str:
    """The text of a style sheet or a script."""
    file = resources.files(__package__) / _TEMPLATES / name
    return file.read_text(encoding="utf-8")


def script_data(value: object) -> str:
    r"""JSON that may stand in a ``script`` element, whatever strings are in it.

    >>> print(script_data("</script>"))
    "\u003c/script>"
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _shown(value: Any) -> Any:
    """A text without signs that change how it is read; other values, and HTML, as they are."""
    return visible(value, "\n\t") if type(value) is str else value


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(__package__, _TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "basename": file_name,
        "code": lambda text: Markup(escape(_shown(text), quote=False)),
        "count": "{:,}".format,
        "escaped": lambda text: Markup(escape(_shown(text))),
        "path": shown,
        "percent": "{:.1%}".format,
        "printable": printable,
        "prose_size": prose_size,
        "readable_size": readable_size,
        "width": lambda share: f"{100 * share:.4g}",
    }
    environment.globals |= {"place": place, "source_line": source_line}
    return environment
