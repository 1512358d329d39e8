"""The search finds what trying every value finds, with few trials, and proves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from pytorch_memlab.fitting.curve import Point, fitted_line
from pytorch_memlab.fitting.search import Search, TriedValue


def largest(values, attempt, available, hints=(), slack=0) -> Search:
    """The largest value that fits, by one trial after another."""
    search = Search(values, available, slack)
    search.hints = sorted(hints)
    while wanted := search.wanted():
        search.add(attempt(wanted[0]))
    return search


class Program:
    """Peaks of values; remembers which were tried."""

    def __init__(
        self,
        peak: Callable[[int], float],
        capacity: int,
        refuses: Callable[[int], object] = lambda value: False,
    ) -> None:
        self.peak = peak
        self.capacity = capacity
        self.refuses = refuses
        self.tried: list[int] = []

    def fits(self, value: int) -> bool:
        return self.peak(value) <= self.capacity

    def attempt(self, value: int) -> TriedValue:
        assert value not in self.tried, "no value is tried twice"
        self.tried.append(value)
        if self.refuses(value):
            return TriedValue(value=value, fits=False, problem=f"ValueError: not {value}")
        peak = int(self.peak(value))
        return TriedValue(value=value, fits=self.fits(value), active=peak, needed=peak)

    def search(self, values: Sequence[int], hints: Iterable[Point] = ()) -> Search:
        return largest(values, self.attempt, self.capacity, hints)

    def every_value(self, values: Sequence[int]) -> int | None:
        fitting = [value for value in values if not self.refuses(value) and self.fits(value)]
        return max(fitting, default=None)


UP_TO_512 = range(1, 513)


def test_a_line_takes_four_trials() -> None:
    program = Program(lambda value: 50 + value, 80)

    found = program.search(UP_TO_512)

    assert found.value == 30
    assert program.tried == [1, 22, 30, 31]  # two for a line, its answer, and the proof
    assert found.above == TriedValue(value=31, fits=False, active=81, needed=81)


def test_hints_of_another_gpu_leave_the_guess_and_its_proof() -> None:
    program = Program(lambda value: 50 + value, 80)

    assert program.search(UP_TO_512, [Point(1, 51), Point(22, 72)]).value == 30
    assert sorted(program.tried) == [30, 31]


def test_hints_that_are_wrong_change_no_answer() -> None:
    for hints in ([Point(1, 5), Point(9, 6)], [Point(1, 500), Point(9, 600)], [Point(3, 70)]):
        assert Program(lambda value: 50 + value, 80).search(UP_TO_512, hints).value == 30


def test_one_trial_shows_that_nothing_fits() -> None:
    program = Program(lambda value: 90 + value, 80)

    found = program.search(UP_TO_512)

    refused = TriedValue(value=1, fits=False, active=91, needed=91)
    assert (found.value, found.above) == (None, refused)
    assert program.tried == [1]


def test_the_upper_end_is_proven_by_a_trial() -> None:
    program = Program(lambda value: 9 + value, 8000)

    found = program.search(UP_TO_512)

    assert (found.value, found.above) == (512, None)
    assert program.tried[-1] == 512


@pytest.mark.parametrize(
    ("peak", "capacity", "trials"),
    [
        (lambda value: max(50, 40 + value), 80, 5),  # the optimizer's step, then activations
        (lambda value: max(500, value), 600, 10),
        (lambda value: 9 + value**2, 8000, 10),  # attention over a length
        (lambda value: 9 + value**3, 800_000, 13),
        (lambda value: 9 + 100 * value**0.5, 1000, 7),
        (lambda value: 20 * (value // 20) + 50, 200, 7),  # segments of 20 MiB
    ],
)
def test_curves_that_are_no_lines(peak: Callable[[int], float], capacity: int, trials: int) -> None:
    program = Program(peak, capacity)

    assert program.search(UP_TO_512).value == program.every_value(UP_TO_512)
    assert len(program.tried) <= trials


@settings(max_examples=200, deadline=None)
@given(
    base=st.integers(0, 1000),
    slope=st.floats(0, 50),
    bend=st.floats(0, 1),
    elbow=st.integers(0, 2000),
    capacity=st.integers(1, 5000),
    upper=st.integers(1, 600),
    step=st.integers(1, 9),
)
def test_growing_peaks_give_what_every_value_gives(
    base: int, slope: float, bend: float, elbow: int, capacity: int, upper: int, step: int
) -> None:
    values = range(1, upper + 1, step)
    program = Program(lambda value: max(elbow, base + slope * value + bend * value**2), capacity)

    assert program.search(values).value == program.every_value(values)
    assert len(program.tried) <= 20


@pytest.mark.parametrize(("is_known", "trials"), [(True, 5), (False, 9)])
def test_a_value_fits_although_it_would_reserve_too_much_without_a_limit(
    is_known: bool, trials: int
) -> None:
    """The allocator gives cached memory back before it fails."""
    tried: list[int] = []

    def attempt(value: int) -> TriedValue:
        tried.append(value)
        active = (50 + value) * 1000
        needed, reserved = active * 51 // 50, active * 13 // 10
        fits = needed <= 80_000
        if not is_known:
            needed = min(reserved, 80_000) if fits else reserved
        return TriedValue(value=value, fits=fits, active=active, needed=needed)

    assert largest(UP_TO_512, attempt, 80_000).value == 28  # by its reserved bytes it would be 11
    assert len(tried) <= trials


def test_peaks_that_are_not_monotonic() -> None:
    """Segments of the allocator make 26 and 27 fail although 28 fits."""
    tried: list[int] = []

    def attempt(value: int) -> TriedValue:
        tried.append(value)
        reserved = {26: 527, 27: 528, 28: 525}.get(value, 500 + value)
        return TriedValue(value=value, fits=reserved <= 525, active=495 + value, needed=reserved)

    assert largest(UP_TO_512, attempt, 525, slack=10).value == 28
    assert tried == [1, 22, 25, 26, 30, 29, 28]  # 31 would have 526 in use
    # The peak at 25 is 0.75 below the line through 22 and 26, so 1.5 more may be needed. The line
    # through 25 and 26 gives 529 at 27, which is tried for 525 + 3 + 1.5 and not for 1 less.
    assert largest(UP_TO_512, attempt, 525, slack=3).value == 28
    assert largest(UP_TO_512, attempt, 525, slack=2).value == 25


def test_a_value_whose_bytes_in_use_do_not_fit_ends_the_search() -> None:
    program = Program(lambda value: 10 * value, 105)

    assert program.search(UP_TO_512).value == 10
    assert max(value for value in program.tried if value < 20) == 11


@pytest.mark.parametrize("multiple", [2, 3, 4, 6, 8, 12, 32])
def test_a_program_that_takes_multiples(multiple: int) -> None:
    program = Program(lambda value: 9 + value, 300, refuses=lambda value: value % multiple)

    found = program.search(UP_TO_512)

    assert found.value == program.every_value(UP_TO_512)
    assert found.step == multiple
    assert found.value is not None
    assert program.tried[-1] == found.value + multiple  # the next one that it takes
    assert len(program.tried) <= 13


def test_a_program_that_takes_values_up_to_a_limit() -> None:
    program = Program(lambda value: 9 + value, 2000, refuses=lambda value: value > 100)

    found = program.search(UP_TO_512)

    assert (found.value, found.step) == (100, 1)
    assert found.above is not None
    assert found.above.problem == "ValueError: not 101"


def test_a_program_that_refuses_every_value() -> None:
    program = Program(lambda value: value, 100, refuses=lambda value: True)

    found = program.search(UP_TO_512)

    assert (found.value, found.problem) == (None, "ValueError: not 1")
    assert program.tried == [1, 8, 12, 60, 64, 480]


def test_a_problem_of_all_values_ends_the_search_at_once() -> None:
    tried: list[int] = []

    def attempt(value: int) -> TriedValue:
        tried.append(value)
        return TriedValue(value=value, fits=False, problem="unknown option", is_final=True)

    assert largest(UP_TO_512, attempt, 100).problem == "unknown option"
    assert tried == [1]


def test_values_below_zero() -> None:
    program = Program(lambda value: 50 + value, 40)

    assert program.search(range(-20, 20)).value == -10
    assert Program(lambda value: 50 + value, 80).search(range(-20, -4)).value == -5


def test_values_of_a_list() -> None:
    program = Program(lambda value: value, 100)

    found = program.search((8, 16, 64, 96, 128, 256))

    assert found.value == 96
    assert found.above == TriedValue(value=128, fits=False, active=128, needed=128)


def test_the_line_is_off_by_what_the_farthest_point_is() -> None:
    line = fitted_line([Point(0, 10), Point(10, 30), Point(20, 56)])

    assert line is not None
    assert (round(line.base, 6), round(line.per_item, 6)) == (9.0, 2.3)
    assert round(line.error, 6) == 2.0
    assert fitted_line([Point(1, 1), Point(1, 1)]) is None
