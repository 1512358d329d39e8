"""The peak over a variable, with the memory of GPUs, as an SVG or PNG picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from .picture import ALARM, COLOURS, drawn, finish, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..fitting.curve import Curve
    from ..fitting.grid import Answer, GridSearch

_LONGEST: Final = 70
_LABEL: Final = 0.025
"""Height of a label, as a part of the picture."""
_ABOVE: Final = 1.15
"""Top of the picture, as a multiple of the largest GPU's memory."""


def _picture(kind: str, report: GridSearch) -> bytes:
    """The curve as a picture, one for each combination of other variables."""
    shown = [one for one in report.combinations if any(answer.points for answer in report.of(one))]
    title = shortened(f"{report.program}: memory by {report.variable.name}", _LONGEST)
    return drawn(kind, title, shown, partial(_curve, report))


svg = partial(_picture, "svg")
png = partial(_picture, "png")


def _curve(report: GridSearch, axes: Axes, combination: tuple[int | str, ...]) -> None:
    answers = report.of(combination)
    values = [point.value for one in answers for point in one.points]
    top = _ABOVE * max(
        (one.room for one in answers if one.largest.value is not None),
        default=max(one.room for one in answers),
    )
    last = _last_value(answers, top)
    axes.set_xlim(min(0, *values), last)
    for number, curve in enumerate(report.curves(combination)):
        axes.plot(
            [point.value for point in curve.points],
            [point.peak for point in curve.points],
            "o-",
            color=COLOURS[number % len(COLOURS)],
            markersize=4,
            linewidth=1.4,
            label=_label(curve),
        )
    _rooms(axes, answers, top, last)
    pairs = zip(report.others, combination, strict=True)
    setting = shortened(", ".join(f"{one.name} {value}" for one, value in pairs), _LONGEST)
    finish(axes, setting, printable(report.variable.name), top)
    axes.legend(
        loc="upper left", frameon=False, title="memory that PyTorch needs", alignment="left"
    )


def _last_value(answers: Sequence[Answer], top: float) -> float:
    """The value up to which curves are shown: the first that lies above the picture."""
    inside = [point.value for one in answers for point in one.points if point.peak <= top]
    outside = [
        point.value
        for one in answers
        for point in one.points
        if point.peak > top and point.value > max(inside, default=0)
    ]
    last = max(inside, default=0)
    if outside and last:
        return min(*outside, 1.25 * last) if len(outside) > 1 else min(outside[0], 1.25 * last)
    return max(last, *outside, 1) if outside else max(1.05 * last, 1)


def _label(curve: Curve) -> str:
    """The GPUs of a curve, and its line."""
    line = curve.line
    names = shortened(", ".join(curve.names), _LONGEST)
    if line is None:
        return names
    sign = "-" if line.base < 0 else ""
    base, each = prose_size(round(abs(line.base))), prose_size(round(abs(line.per_item)))
    return f"{names}: {sign}{base} {'-' if line.per_item < 0 else '+'} {each} each"


def _rooms(axes: Axes, answers: Sequence[Answer], top: float, last: float) -> None:
    """Marks of each GPU's usable memory and of the largest value that fits."""
    shown = [one for one in answers if one.largest.value is not None]
    labels: list[tuple[int, list[str]]] = []
    for one in sorted(shown, key=lambda one: one.room):
        value = one.largest.value or 0
        axes.axhline(one.room, color=ALARM, linewidth=1)
        axes.plot(
            [value],
            [next(p.peak for p in one.points if p.value == value)],
            "D",
            color=ALARM,
            markersize=6,
        )
        label = f"{printable(one.name)}: {value}"
        if labels and one.room - labels[-1][0] < _LABEL * top:
            labels[-1][1].append(label)
        else:
            labels.append((one.room, [label]))
    for room, names in labels:
        axes.annotate(
            shortened(", ".join(names), _LONGEST),
            (last, room),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            color=ALARM,
        )
