"""The base of all pictures: the marks of axes, colours, and matplotlib for SVG and PNG."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable, visible
from ..errors import UsageError
from .rows import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

_MOST_BYTE_MARKS: Final = 6
_EVENT_MARKS: Final = 6

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
_WIDTH: Final = 12.0
_HEIGHT: Final = 6.3
"""One part has 1200 x 630 dots, as pages that show a link expect of a picture."""

_SETTINGS: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
    "svg.hashsalt": "pytorch_memlab",  # the same data makes the same file
    "text.parse_math": False,  # the name of a function may have two dollar signs
}


def check_installed(instead: str = ", or write .html, which needs nothing more") -> None:
    """Raise ``UsageError`` if there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "SVG and PNG pictures need matplotlib: pip install 'pytorch-memlab[plot]'"
            f"{instead} ({error})"
        ) from None


def shortened(text: str, longest: int) -> str:
    """A text of the program, cut so that it leaves room for the picture."""
    return cut(printable(text), longest)


def drawn(ending: str, title: str, parts: Sequence[T], draw: Callable[[Axes, T], None]) -> bytes:
    """A picture of some parts, one below the other, for a file that ends in .svg or .png."""
    check_installed()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    metadata: dict[str, Any] = {"Date": None} if ending == ".svg" else {}
    output = BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # Letters that no font of the machine has are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        rows = max(len(parts), 1)
        figure = Figure(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", color=INK, weight="bold", size=16)
        grid = figure.subplots(rows, 1, squeeze=False)
        for axes, part in zip(grid[:, 0], parts, strict=False):
            draw(axes, part)
        figure.savefig(output, format=ending[1:], dpi=_DOTS_PER_INCH, metadata=metadata)
    return output.getvalue()


def finish(axes: Axes, title: str, label: str, top: float) -> None:
    """The title, the label of the axis to the right, and an axis of bytes."""
    axes.set_title(visible(title), loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(label, color=QUIET)
    axes.set_ylim(0, top)
    sizes = byte_marks(round(top))
    axes.set_yticks(sizes, [prose_size(size) for size in sizes])
    axes.tick_params(colors=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d4d8dd", linewidth=0.6)
    axes.set_axisbelow(True)


def byte_marks(highest: int) -> list[int]:
    """Sizes that an axis of bytes marks: 0 and up to six multiples of a power of two.

    >>> [mark // 2**30 for mark in byte_marks(80 * 2**30)]
    [0, 16, 32, 48, 64, 80]
    """
    step = 2 ** max(0, math.ceil(math.log2(max(highest, 1) / _MOST_BYTE_MARKS)))
    return list(range(0, highest + 1, step))


def event_marks(last: int) -> list[int]:
    """Numbers of events that an axis marks: at most seven, 1, 2 or 5 times a power of ten apart.

    >>> event_marks(1000)
    [0, 200, 400, 600, 800, 1000]
    """
    rough = max(last / _EVENT_MARKS, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return list(range(0, last + 1, step))
