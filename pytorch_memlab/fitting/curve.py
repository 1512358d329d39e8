"""The memory over a variable: as points, and as a line of a base and bytes for each one more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Final

_NEAR: Final = 0.02
_TOLERANCE: Final = 0.005


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The peak at one value."""

    value: int
    peak: int  # bytes


@dataclass(frozen=True, slots=True)
class FittedLine:
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


def fitted_line(points: Iterable[Point]) -> FittedLine | None:
    """The line of least squares.

    >>> line = fitted_line([Point(1, 12), Point(3, 16), Point(5, 20)])
    >>> line.base, line.per_item, line.error
    (10.0, 2.0, 0.0)
    """
    ordered = tuple(sorted(set(points)))
    if len({point.value for point in ordered}) < 2:
        return None
    values, peaks = zip(*((point.value, point.peak) for point in ordered), strict=True)
    slope, base = linear_regression(values, peaks)
    error = max(abs(base + slope * point.value - point.peak) for point in ordered)
    return FittedLine(base, slope, ordered, error)


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


def upper_line(points: Iterable[Point]) -> FittedLine | None:
    """The line of a curve at its upper end, where it decides what fits.

    >>> line = upper_line([Point(1, 50), Point(2, 50), Point(20, 60), Point(30, 70)])
    >>> line.base, line.per_item, [point.value for point in line.points]
    (40.0, 1.0, [20, 30])
    """
    # A curve may begin flat, where the step of an optimizer holds more than the activations. The
    # line goes through as many of the last points as lie within 0.5% of it.
    ordered = sorted(set(points))
    best = None
    for count in range(2, len(ordered) + 1):
        line = fitted_line(ordered[-count:])
        if line is None:
            continue
        if best is not None and line.error > _TOLERANCE * ordered[-1].peak:
            break
        best = line
    return best


@dataclass(frozen=True, slots=True)
class Curve:
    """The memory that values need on GPUs where it is the same, or nearly so."""

    # That is the least memory that PyTorch's allocator serves all requests with. With more, it
    # keeps more in its cache.

    names: tuple[str, ...]
    points: tuple[Point, ...]

    @classmethod
    def of(cls, names: Iterable[str], points: Iterable[Point]) -> Curve:
        """The curve of some GPUs; of points of one value, the last one counts."""
        by_value = {point.value: point for point in points}
        return cls(tuple(names), tuple(sorted(by_value.values())))

    def at(self, value: int) -> float | None:
        """The memory of a value: between the points, or on the line beyond; None before them."""
        line = self.line
        if line is not None and value > self.points[-1].value:
            return line.at(value)
        return interpolated(self.points, value)

    def is_near(self, other: Curve) -> bool:
        """True if two curves differ by less than 2% where both are known."""
        pairs = [(self.at(point.value), point.peak) for point in other.points]
        pairs += [(other.at(point.value), point.peak) for point in self.points]
        both_sized = [(a, b) for a, b in pairs if a is not None]
        return bool(both_sized) and all(abs(a - b) <= _NEAR * b for a, b in both_sized)

    @property
    def line(self) -> FittedLine | None:
        """The curve where it is a line; None if less than two values ran."""
        return upper_line(self.points)
