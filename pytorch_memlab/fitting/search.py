"""The largest value of a variable with which a program fits on a GPU.

Note [Proven by trials]
A line through the peaks of two values guesses the answer. It is an answer only after a trial with
it fits, and a trial with the next value does not. The guess saves trials and decides nothing.

Note [Peaks that are not monotonic]
The allocator rounds and splits, so a value may fit though a smaller one does not. A value for
which the bytes in use alone are more than the GPU has cannot fit, whatever the allocator does. Of
the values between, those are tried that would fit if they needed a little less: by the slack that
the caller gives, and by as much as the peaks near the answer leave a line. The largest one comes
first, because only the largest that fits is of interest.

Note [Values that a program refuses]
Some programs take only some values: a batch that micro-batches divide, a length up to the size of
a table of positions. The values that ran and those that did not tell which: all multiples of a
number, or all up to a limit. Only such values are tried from then on.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from .curve import Point, line_through

LOOK_AHEAD: Final = 16
"""Number of values after the first one that does not fit that may be tried too."""

_FIRST_ACCEPTED: Final = (8, 12, 60, 64, 480)
"""Multiples that are tried if the smallest value is refused, until the program runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedValue:
    """The result of a trial with one value on one GPU."""

    value: int
    fits: bool
    active: int = 0  # bytes in use at the peak, where memory has no limit
    # bytes with which the program would just fit, for guesses: more than there are if it does not
    needed: int = 0
    problem: str | None = None  # why the program does not run with this value; None if it runs
    is_final: bool = False  # whether the problem is one of all values, such as an unknown option


class Search:
    """The largest value with which a program fits on a GPU, as far as trials have told."""

    # Chooses the values of these, with few trials. See Note [Proven by trials].

    def __init__(
        self,
        values: Sequence[int],
        available: int,
        slack: int = 0,
    ) -> None:
        self._values = values
        self._available = available
        self._slack = slack
        self.hints: Sequence[Point] = ()
        """Points of another search's curve, by value; set before the first trial."""
        self._tried: dict[int, TriedValue] = {}
        self.step = 1  # the program takes only multiples of it
        self._from_end: int | None = None
        self._times_from_end = 0
        self._last_fits: bool | None = None
        self._repeats = 0

    def wanted(self) -> tuple[int, ...]:
        """Values to try: the first is needed, a second one is likely to be. Empty at the end."""
        if not self._ran():
            return self._first()
        candidates = self._open()
        if candidates:
            value = self._next(candidates)
            following = candidates.index(value) + 1
            return (value, *candidates[following : following + 1])
        return self._beyond()

    def add(self, tried: TriedValue) -> None:
        """Take the result of a trial."""
        self._tried[tried.value] = tried
        self.step = self._multiples() or self.step
        self._times_from_end += tried.value == self._from_end
        self._repeats = self._repeats + 1 if tried.fits == self._last_fits else 0
        self._last_fits = tried.fits

    # State

    @property
    def tried(self) -> tuple[TriedValue, ...]:
        """All values that were tried, in ascending order."""
        return tuple(self._tried[value] for value in sorted(self._tried))

    @property
    def value(self) -> int | None:
        """The largest that fits; None if none does."""
        return max((tried.value for tried in self._tried.values() if tried.fits), default=None)

    @property
    def above(self) -> TriedValue | None:
        """The trial with the next value, which does not fit or does not run."""
        value = self.value
        return next((tried for tried in self.tried if value is None or tried.value > value), None)

    @property
    def problem(self) -> str | None:
        """The reason why the program runs with no tried value; None if it runs with one."""
        return self.tried[0].problem if self._tried and not self._ran() else None

    def _ran(self) -> list[TriedValue]:
        return [tried for tried in self.tried if tried.problem is None]

    def _limit(self, best: int | None) -> int | None:
        """The smallest value above the best one that does not fit or does not run."""
        values = (
            tried.value
            for tried in self._tried.values()
            if not tried.fits
            and (best is None or tried.value > best)
            and (tried.problem is None or (best is not None and tried.value % self.step == 0))
        )
        return min(values, default=None)

    def _multiples(self) -> int | None:
        """The step of what it takes; None for none. See Note [Values that a program refuses]."""
        ran = [tried.value for tried in self._ran()]
        refused = [tried.value for tried in self._tried.values() if tried.problem is not None]
        if not ran:
            return None
        common = math.gcd(*ran)
        steps = (step for step in range(1, common + 1) if common % step == 0)
        return next((step for step in steps if all(value % step for value in refused)), None)

    def _open(self) -> list[int]:
        """Values between the best one and the smallest that does not fit, in ascending order."""
        best = self.value
        limit = self._limit(best)
        begin = 0 if best is None else bisect_right(self._values, best)
        end = len(self._values) if limit is None else bisect_left(self._values, limit)
        return [
            value
            for value in self._values[begin:end]
            if value % self.step == 0 and value not in self._tried
        ]

    # Which value is next

    def _first(self) -> tuple[int, ...]:
        """Values with which the program may run, where it has not run yet."""
        if any(tried.is_final for tried in self._tried.values()):
            return ()
        lowest = self._values[0]
        if self._tried:
            accepted = (
                next((value for value in self._values if value % number == 0), lowest)
                for number in _FIRST_ACCEPTED
            )
            return next(((value,) for value in (lowest, *accepted) if value not in self._tried), ())
        guess = self._guessed(self.hints, self._values) if len(self.hints) > 1 else None
        if guess is None:
            return (lowest,) if self.hints else (lowest, *self._far_from(lowest, self._values))
        following = self._values.index(guess) + 1
        return (guess, *self._values[following : following + 1])

    def _next(self, candidates: Sequence[int]) -> int:
        """The candidate that narrows the search most."""
        ran = self._ran()
        if len(ran) == 1 and len(self.hints) < 2:
            far = self._far_from(ran[0].value, candidates) if ran[0].fits else ()
            return far[0] if far else candidates[0]
        best = self.value
        limit = self._limit(best)
        guess = self._guess(candidates)
        if guess is None:  # below all candidates
            return self._near_end(candidates)
        if guess == candidates[-1] and limit is not None:
            if self._tried[limit].problem is not None:
                return candidates[len(candidates) // 2]
            return self._near_end(candidates[::-1])
        return guess

    def _far_from(self, value: int, candidates: Sequence[int]) -> tuple[int, ...]:
        """A candidate far enough from a value for a line through both; empty without any."""
        middle = math.isqrt(max(value, 1) * max(candidates[-1], 1))
        others = [candidate for candidate in candidates if candidate > value]
        return tuple(([other for other in others if other <= middle] or others[:1])[-1:])

    def _near_end(self, candidates: Sequence[int]) -> int:
        """The first candidate; one farther inside each time that this did not end the search."""
        place: int = min(2**self._times_from_end, (len(candidates) + 1) // 2) - 1
        self._from_end = candidates[place]
        return candidates[place]

    def _guess(self, candidates: Sequence[int]) -> int | None:
        """The largest candidate that should fit."""
        points = [Point(tried.value, tried.needed) for tried in self._ran()]
        if len(points) == 1:
            points = self._moved_hints(points[0])
        return self._guessed(points, candidates)

    def _moved_hints(self, own: Point) -> list[Point]:
        """Hints of other GPUs, as far off as they are at the only value tried on this one."""
        at_own = _interpolated(self.hints, own.value)
        others = [Point(hint.value, round(hint.peak + own.peak - at_own)) for hint in self.hints]
        return sorted([own, *(other for other in others if other.value != own.value)])

    def _guessed(self, points: Sequence[Point], candidates: Sequence[int]) -> int | None:
        fits = [point for point in points if point.peak <= self._available]
        fails = [point for point in points if not fits or point.value > fits[-1].value]
        if fits and fails:
            ends = self._nearer(fits[-1], fails[0])
        elif fits:
            falls = points[-1].peak <= points[-2].peak
            ends = (points[0] if falls else points[-2], points[-1])
        else:
            ends = (points[0], points[1])
        base, slope = line_through(*ends)
        return max(
            (candidate for candidate in candidates if base + slope * candidate <= self._available),
            default=None,
        )

    def _nearer(self, low: Point, high: Point) -> tuple[Point, Point]:
        """Two ends of a curve, moved by the Illinois variant of the method of false position."""
        weight = 0.5 ** max(0, self._repeats - 1)
        if self._last_fits:
            return low, Point(high.value, self._available + self._weighed(high, weight))
        return Point(low.value, self._available + self._weighed(low, weight)), high

    def _weighed(self, end: Point, weight: float) -> int:
        return round((end.peak - self._available) * weight)

    # Beyond the first value that does not fit

    def _beyond(self) -> tuple[int, ...]:
        """Larger values that may fit all the same. See Note [Peaks that are not monotonic]."""
        best = self.value
        limit = self._limit(best)
        if best is None or limit is None:
            return ()
        above = self._values[bisect_right(self._values, limit) :]
        larger = islice((value for value in above if value % self.step == 0), LOOK_AHEAD)
        return tuple(
            value
            for value in reversed(list(larger))
            if value not in self._tried and self._may_fit(value, best)
        )

    def _may_fit(self, value: int, best: int) -> bool:
        """True if the bytes in use alone may be few enough, and those needed nearly are."""
        ran = self._ran()
        if any(tried.active > self._available and tried.value <= value for tried in ran):
            return False
        if len(ran) < 2:
            return True
        active = _interpolated([Point(tried.value, tried.active) for tried in ran], value)
        needs = [Point(tried.value, tried.needed) for tried in ran]
        slack = self._slack + 2 * _off_line(needs, best)
        return active <= self._available and _interpolated(needs, value) <= self._available + slack


def _off_line(points: Sequence[Point], value: int) -> float:
    """The distance of the three points nearest to a value from a line.

    >>> _off_line([Point(9, 81), Point(4, 16), Point(1, 1), Point(2, 4)], 2)
    2.0
    """
    near = sorted(sorted(points, key=lambda point: abs(point.value - value))[:3])
    if len(near) < 3:
        return 0
    base, slope = line_through(near[0], near[2])
    return abs(base + slope * near[1].value - near[1].peak)


def _interpolated(points: Sequence[Point], value: int) -> float:
    """The peak at a value, by a line through the two points nearest to it."""
    ends = sorted(sorted(points, key=lambda point: abs(point.value - value))[:2])
    base, slope = line_through(ends[0], ends[1])
    return base + slope * value
