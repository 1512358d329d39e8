"""The base of all SVG and PNG pictures: matplotlib, its settings, and colours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from .._common.quoted import printable
from ..errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: Final = (
    "#2961ce",
    "#8b3f03",
    "#5f9c72",
    "#614691",
    "#a1790c",
    "#17495a",
    "#d55fb8",
    "#2a320b",
    "#737378",
)
"""Of bands and lines, as pages have them where they are light."""

ALARM: Final = "#b3151b"
INK: Final = "#1b1f24"
QUIET: Final = "#57606a"

_DOTS_PER_INCH: Final = 100

_SETTINGS: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
    "svg.hashsalt": "pytorch_memlab",  # the same data makes the same file
    "text.parse_math": False,  # the name of a function may have two dollar signs
}


def check_installed(instead: str = ", or write .html, which needs nothing more") -> None:
    """Find out beforehand whether pictures can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "SVG and PNG pictures need matplotlib: pip install 'pytorch-memlab[plot]'"
            f"{instead} ({error})"
        ) from None


def shortened(text: str, longest: int) -> str:
    """A text of the program, cut so that it leaves room for the picture."""
    shown = printable(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def drawn(draw: Callable[[Figure], object], inches: tuple[float, float], kind: str) -> bytes:
    """A picture."""
    check_installed()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    output = BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # Letters that no font of the machine has are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        figure.savefig(output, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return output.getvalue()
