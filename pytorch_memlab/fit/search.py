"""The largest value of a variable with which a program fits on a GPU.

Note [Proven by trials]
A line through the peaks of two values guesses the answer. It is an answer only after a trial with
it fits, and a trial with the next value does not. The guess saves trials and decides nothing.

Note [Peaks that are not monotonic]
The allocator rounds and splits, so a value may fit though a smaller one does not. A value for
which the bytes in use alone are more than the GPU has cannot fit, whatever the allocator does.
Between the first value that does not fit and such a value, others are tried: all if they are few,
or else the nearest ones.

Note [Values that a program refuses]
Some programs take only some values: a batch that micro-batches divide, a length up to the size of
a table of positions. The values that ran and those that did not tell which: all multiples of a
number, or all up to a limit. Only such values are tried from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .curve import Point, line_through

LOOK_AHEAD: Final = 4
"""Values after the first one that does not fit which are tried too."""

_FIRST_ACCEPTED: Final = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Where the smallest value is refused: multiples of these are tried, until the program runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a trial with one value says of one GPU.

    Args:
        value: of the variable.
        fits: whether the program fits.
        active: bytes in use at the peak, where memory has no limit.
        reserved: bytes reserved at the peak, where memory has no limit.
        problem: why the program does not run with this value; None if it runs.
        is_final: whether the problem is one of all values, such as an unknown option.
    """

    value: int
    fits: bool
    active: int = 0
    reserved: int = 0
    problem: str | None = None
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value with which a program fits on a GPU.

    Args:
        value: the largest that fits; None if none does.
        tried: all values that were tried, in ascending order.
        step: the program takes only multiples of it; 1 if it takes every value.
        is_upper_end: whether no larger value may be tried.
    """

    value: int | None
    tried: tuple[Tried, ...]
    step: int
    is_upper_end: bool

    @property
    def best(self) -> Tried | None:
        """The trial with the largest value that fits."""
        return next((one for one in self.tried if one.value == self.value), None)

    @property
    def above(self) -> Tried | None:
        """The trial with the next value, which does not fit or does not run."""
        return next(
            (one for one in self.tried if self.value is None or one.value > self.value), None
        )

    @property
    def problem(self) -> str | None:
        """Why the program runs with no value that was tried; None if it runs with one."""
        if not self.tried or any(one.problem is None for one in self.tried):
            return None
        return self.tried[0].problem


def largest(
    values: Sequence[int],
    attempt: Callable[[int], Tried],
    available: int,
    hints: Iterable[Point] = (),
) -> Largest:
    """Find the largest value that fits, with few trials. See Note [Proven by trials].

    Args:
        values: that may be tried, in ascending order.
        attempt: runs a trial.
        available: bytes that PyTorch can have on the GPU.
        hints: reserved bytes of values on other GPUs, for the first guess.
    """
    return _Search(values, attempt, available, sorted(hints)).run()


class _Search:
    """One search.

    Args:
        values: that may be tried, in ascending order.
        attempt: runs a trial.
        available: bytes that PyTorch can have on the GPU.
        hints: for the first guess, by value.
    """

    def __init__(
        self,
        values: Sequence[int],
        attempt: Callable[[int], Tried],
        available: int,
        hints: Sequence[Point],
    ) -> None:
        self._values = values
        self._attempt = attempt
        self._available = available
        self._hints = hints
        self._tried: dict[int, Tried] = {}
        self._step = 1
        self._paces = 0
        self._last_fits: bool | None = None
        self._repeats = 0

    def run(self) -> Largest:
        """Try values until the answer is proven."""
        if self._begin():
            self._approach()
            while self._look_ahead():
                self._approach()
        best = self._best()
        return Largest(
            best,
            tuple(self._tried[value] for value in sorted(self._tried)),
            self._step,
            best is not None and not any(value > best for value in self._values),
        )

    def _approach(self) -> None:
        """Try values until no value lies between one that fits and one that does not."""
        while (value := self._next()) is not None:
            self._try(value)

    # State

    def _try(self, value: int) -> Tried:
        found = self._attempt(value)
        self._tried[value] = found
        self._step = self._multiples() or self._step
        self._repeats = self._repeats + 1 if found.fits == self._last_fits else 0
        self._last_fits = found.fits
        return found

    def _ran(self) -> list[Tried]:
        return sorted(
            (one for one in self._tried.values() if one.problem is None), key=lambda one: one.value
        )

    def _best(self) -> int | None:
        return max((one.value for one in self._tried.values() if one.fits), default=None)

    def _limit(self, best: int | None) -> int | None:
        """The smallest value above the best one that does not fit or does not run."""
        values = (
            one.value
            for one in self._tried.values()
            if not one.fits
            and (best is None or one.value > best)
            and (one.problem is None or (best is not None and one.value % self._step == 0))
        )
        return min(values, default=None)

    def _multiples(self) -> int | None:
        """The number whose multiples the program takes, as far as is known; None if there is none.

        See Note [Values that a program refuses].
        """
        ran = [one.value for one in self._ran()]
        refused = [one.value for one in self._tried.values() if one.problem is not None]
        if not ran:
            return None
        common = math.gcd(*ran)
        return next(
            (
                step
                for step in range(1, common + 1)
                if common % step == 0 and all(value % step for value in refused)
            ),
            None,
        )

    def _open(self) -> list[int]:
        """Values between the best one and the smallest that does not fit, in ascending order."""
        best = self._best()
        limit = self._limit(best)
        return [
            value
            for value in self._values
            if value % self._step == 0
            and value not in self._tried
            and (best is None or value > best)
            and (limit is None or value < limit)
        ]

    # Which value is next

    def _begin(self) -> bool:
        """Find one value with which the program runs: the guess, or the smallest one."""
        lowest = self._values[0]
        guess = self._guessed([*self._hints], self._values) if len(self._hints) > 1 else lowest
        first = self._try(guess if guess is not None else lowest)
        if first.problem is None:
            return True
        for value in (lowest, *self._accepted()):
            if value not in self._tried:
                found = self._try(value)
                if found.problem is None:
                    return True
                if found.is_final:
                    return False
            elif self._tried[value].is_final:
                return False
        return False

    def _accepted(self) -> Iterator[int]:
        """Values that a program may take which refuses others."""
        for number in _FIRST_ACCEPTED:
            value = next((one for one in self._values if one % number == 0), None)
            if value is not None:
                yield value

    def _next(self) -> int | None:
        candidates = self._open()
        if not candidates:
            return None
        ran = self._ran()
        if len(ran) == 1 and len(self._hints) < 2:
            return self._second(ran[0], candidates)
        best = self._best()
        limit = self._limit(best)
        guess = self._guess(candidates)
        if guess is None:  # below all candidates
            if best is not None and self._tried[best].reserved > self._available:
                return self._within_active(candidates)
            return self._paced(candidates, from_below=True)
        if guess == candidates[-1] and limit is not None:
            if self._tried[limit].problem is not None:
                return candidates[len(candidates) // 2]
            return self._paced(candidates, from_below=False)
        return guess

    def _second(self, only: Tried, candidates: Sequence[int]) -> int:
        """A value far enough from the only one for a line through both."""
        if not only.fits:
            return candidates[0]
        middle = math.isqrt(max(only.value, 1) * candidates[-1])
        return max((one for one in candidates if one <= middle), default=candidates[0])

    def _paced(self, candidates: Sequence[int], *, from_below: bool) -> int:
        """The candidate at an end; if that happens again and again, one farther inside."""
        reach = min(2**self._paces, (len(candidates) + 1) // 2)
        self._paces += 1
        return candidates[reach - 1] if from_below else candidates[-reach]

    def _within_active(self, candidates: Sequence[int]) -> int:
        """In the middle of what fits if the allocator gives back what it does not use."""
        points = [Point(one.value, one.active) for one in self._ran()]
        highest = self._guessed(points, candidates)
        if highest is None:
            return self._paced(candidates, from_below=True)
        return candidates[candidates.index(highest) // 2]

    def _guess(self, candidates: Sequence[int]) -> int | None:
        """The largest candidate that should fit by its reserved bytes."""
        points = [Point(one.value, one.reserved) for one in self._ran()]
        if len(points) == 1:
            points = self._moved_hints(points[0])
        return self._guessed(points, candidates)

    def _moved_hints(self, own: Point) -> list[Point]:
        """Hints of other GPUs, as far off as they are at the only value tried on this one."""
        at_own = _interpolated(self._hints, own.value)
        others = [Point(one.value, round(one.peak + own.peak - at_own)) for one in self._hints]
        return sorted([own, *(one for one in others if one.value != own.value)])

    def _guessed(self, points: Sequence[Point], candidates: Sequence[int]) -> int | None:
        fits = [one for one in points if one.peak <= self._available]
        fails = [one for one in points if one.peak > self._available]
        if fits and fails and fits[-1].value < fails[0].value:
            ends = self._nearer(fits[-1], fails[0])
        else:
            ends = (points[-2], points[-1]) if fits else (points[0], points[1])
        base, slope = line_through(*ends)
        return max(
            (one for one in candidates if base + slope * one <= self._available), default=None
        )

    def _nearer(self, low: Point, high: Point) -> tuple[Point, Point]:
        """Two ends of a curve that is no line, moved so that guesses come from both sides.

        This is the Illinois variant of the method of false position.
        """
        weight = 0.5 ** max(0, self._repeats - 1)
        if self._last_fits:
            return low, Point(high.value, self._available + self._weighed(high, weight))
        return Point(low.value, self._available + self._weighed(low, weight)), high

    def _weighed(self, end: Point, weight: float) -> int:
        return round((end.peak - self._available) * weight)

    # Beyond the first value that does not fit

    def _look_ahead(self) -> bool:
        """Try values that are larger than one that does not fit and may fit all the same.

        Returns:
            Whether one of them fits.
        """
        best = self._best()
        limit = self._limit(best)
        if best is None or limit is None:
            return False
        beyond = [value for value in self._values if value > limit and value % self._step == 0]
        for value in beyond[:LOOK_AHEAD]:
            if value not in self._tried and self._may_fit(value) and self._try(value).fits:
                return True
        return False

    def _may_fit(self, value: int) -> bool:
        """Whether the bytes in use alone may be few enough; more items are not less."""
        ran = self._ran()
        if any(one.active > self._available and one.value <= value for one in ran):
            return False
        points = [Point(one.value, one.active) for one in ran]
        if len(points) < 2:
            return True
        return _interpolated(points, value) <= self._available


def _interpolated(points: Sequence[Point], value: int) -> float:
    """The peak at a value, by a line through the two points nearest to it."""
    ends = sorted(sorted(points, key=lambda one: abs(one.value - value))[:2])
    base, slope = line_through(ends[0], ends[1])
    return base + slope * value
