"""The peak as a line over a variable: a base, and bytes for each one more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The peak at one value."""

    value: int
    peak: int  # bytes


@dataclass(frozen=True, slots=True)
class Line:
    """The line through the last points of a curve, where it decides what fits."""

    base: float  # bytes at the value 0
    per_item: float  # bytes for each one more
    points: tuple[Point, ...]  # that the line is for, by value
    error: float  # bytes by which the point farthest from the line is off

    def at(self, value: int) -> float:
        """Bytes at a value."""
        return self.base + self.per_item * value


def line_through(first: Point, second: Point) -> tuple[float, float]:
    """Base and bytes per item of the line through two points of different values.

    >>> line_through(Point(1, 12), Point(3, 16))
    (10.0, 2.0)
    """
    slope = (second.peak - first.peak) / (second.value - first.value)
    return first.peak - slope * first.value, slope


def fitted_line(points: Iterable[Point]) -> Line | None:
    """The line of least squares.

    >>> line = fitted_line([Point(1, 12), Point(3, 16), Point(5, 20)])
    >>> line.base, line.per_item, line.error
    (10.0, 2.0, 0.0)
    """
    ordered = tuple(sorted(set(points)))
    if len({point.value for point in ordered}) < 2:
        return None
    count = len(ordered)
    middle = sum(point.value for point in ordered) / count
    height = sum(point.peak for point in ordered) / count
    spread = sum((point.value - middle) ** 2 for point in ordered)
    shared = sum((point.value - middle) * (point.peak - height) for point in ordered)
    slope = shared / spread
    base = height - slope * middle
    error = max(abs(base + slope * point.value - point.peak) for point in ordered)
    return Line(base, slope, ordered, error)


def interpolated(points: Sequence[Point], value: int) -> float | None:
    """The height of a curve at a value between two of its points; None outside.

    >>> interpolated([Point(1, 10), Point(3, 20)], 2), interpolated([Point(1, 10)], 2)
    (15.0, None)
    """
    below = [point for point in points if point.value <= value]
    above = [point for point in points if point.value >= value]
    if not below or not above:
        return None
    if below[-1].value == above[0].value:
        return below[-1].peak
    base, slope = line_through(below[-1], above[0])
    return base + slope * value


_TOLERANCE = 0.005


def upper_line(points: Iterable[Point]) -> Line | None:
    """The line of a curve at its upper end, where it decides what fits.

    A curve may begin flat, where the step of an optimizer holds more than the activations. The
    line goes through as many of the last points as lie within 0.5 % of it.

    >>> line = upper_line([Point(1, 50), Point(2, 50), Point(20, 60), Point(30, 70)])
    >>> line.base, line.per_item, [point.value for point in line.points]
    (40.0, 1.0, [20, 30])
    """
    ordered = sorted(set(points))
    found = None
    for count in range(2, len(ordered) + 1):
        line = fitted_line(ordered[-count:])
        if line is None:
            continue
        if found is not None and line.error > _TOLERANCE * ordered[-1].peak:
            break
        found = line
    return found
