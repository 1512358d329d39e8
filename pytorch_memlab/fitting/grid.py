"""The largest value of a variable on several GPUs, for each combination of other variables.

Note [Runs that searches share]
One search of one GPU goes first. What it learns about the curve is a hint for the others, which
then run side by side. A run without a memory limit stands for every GPU on which the same happens,
so its result answers each search that wants its value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .._common.text.displayed import Displayed
from ..errors import UsageError
from ..simulation.inspect import GPU
from .change import Change
from .comparison import Runs, TrialRun, Wanted
from .config_value import Value
from .curve import Curve, FittedLine, Point
from .search import Search, TriedValue
from .target import Target
from .trial import Settings, Trial
from .variable import Variable
from .verdict import Verdict, verdict
from .watched_gpu import runs_alike

_EARLY: Final = 2
"""Runs at once up to which values are tried that are likely to be needed next."""

_SLACK: Final = 40 * 2**20
"""Two segments of 20 MiB, of which the allocator makes blocks between 1 and 10 MiB."""

_MOST_COMBINATIONS: Final = 200


@dataclass(eq=False)
class Answer:
    """The search of the largest value on one GPU, and its answer as far as it is known."""

    name: str
    gpu: GPU
    room: int  # bytes of it that PyTorch can have
    others: tuple[Value, ...]  # values of the other variables
    changes: tuple[Change, ...]  # that set them
    largest: Search
    is_proven: bool = False
    _verdicts: dict[int, Verdict] = field(default_factory=dict)

    @property
    def best(self) -> Verdict | None:
        """Of the largest value that fits."""
        value = self.largest.value
        return None if value is None else self._verdicts[value]

    @property
    def points(self) -> tuple[Point, ...]:
        """The reserved bytes that all values that ran need."""
        return tuple(
            Point(tried.value, tried.needed)
            for tried in self.largest.tried
            if tried.problem is None
        )

    def advance(
        self, runs: Runs, variable: Variable, settings: Settings, hints: Sequence[Point]
    ) -> list[Wanted]:
        """Go on as far as runs are there: those that are wanted next, of which one is needed."""
        if not self.largest.tried:
            self.largest.hints = hints
        while values := self.largest.wanted():
            wanted = [(self.gpu, (*self.changes, variable.place.set_to(value))) for value in values]
            run = runs.find(*wanted[0])
            if run is None:
                return [arguments for arguments in wanted if runs.find(*arguments) is None]
            self.largest.add(self._tried(values[0], run, settings))
        self.is_proven = True
        return []

    def _tried(self, value: int, run: TrialRun, settings: Settings) -> TriedValue:
        if run.problem is not None:
            return TriedValue(value=value, fits=False, problem=run.problem, is_final=run.is_final)
        judged = self._verdicts[value] = verdict(run.trial, self.gpu, self.name, settings)
        needed = run.needed(judged.device) or judged.reserved_peak  # this agrees with the verdict
        return TriedValue(
            value=value,
            fits=bool(judged.fits),
            active=judged.active_peak,
            needed=min(needed, self.room) if judged.fits else max(needed, self.room + 1),
        )


class GridSearch(Displayed):
    """Searches the largest value on several GPUs, and reports what is known so far."""

    def __init__(
        self,
        program: str,
        gpus: Sequence[tuple[str, GPU]],
        variables: Sequence[Variable],
        settings: Settings,
    ) -> None:
        self.variable = check_variables(variables)
        self.others = tuple(variable for variable in variables if variable is not self.variable)
        self.program = program
        self._settings = settings
        self._runs = Runs(settings)
        ordered = sorted(gpus, key=lambda named: named[1].total_memory)
        self._answers: dict[tuple[Value, ...], list[Answer]] = {}
        for values in itertools.product(*map(values_of_other, self.others)):
            pairs = zip(self.others, values, strict=True)
            changes = tuple(variable.place.set_to(value) for variable, value in pairs)
            numbers = self.variable.numbers or ()
            rooms = [(name, gpu, settings.room(gpu)) for name, gpu in ordered]
            self._answers[values] = [
                Answer(*room, values, changes, Search(numbers, room[2], slack=_SLACK))
                for room in rooms
            ]

    def run(
        self, target: Target, ended: Callable[[int, str], object] = lambda _runs, _latest: None
    ) -> None:
        """Search until everything is known; a report does not hold the function that was run."""
        for wanted in iter(self._needed, []):
            first = len(self._runs.all) + 1
            files = [f"{number:03}" for number in range(first, first + len(wanted))]
            for number, _ in self._runs.run(target, wanted, files):
                values = ", ".join(change.name for change in wanted[number][1])
                ended(len(self._runs.all), values)

    def _needed(self) -> list[Wanted]:
        """Runs without which no search can go on, and some that will be needed soon."""
        wanted: list[list[Wanted]] = []
        for group in self._answers.values():
            # The others of a group wait for that of its largest GPU.
            *others, first = group
            wanted.append(first.advance(self._runs, self.variable, self._settings, ()))
            if first.is_proven:
                hints = first.points
                wanted += [
                    other.advance(self._runs, self.variable, self._settings, hints)
                    for other in others
                ]
        needed: list[Wanted] = []
        for run in (runs[0] for runs in wanted if runs):
            if not self._runs.is_covered(run, needed):
                needed.append(run)
        for run in (run for runs in wanted for run in runs[1:]):
            if 0 < len(needed) < _EARLY and not self._runs.is_covered(run, needed):
                needed.append(run)
        return needed

    @property
    def combinations(self) -> tuple[tuple[Value, ...], ...]:
        """Of the values of the other variables."""
        return tuple(self._answers)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """By combination, then by the memory of the GPU."""
        return tuple(answer for group in self._answers.values() for answer in group)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order in which they began."""
        return self._runs.all

    @property
    def error(self) -> str:
        """The traceback of the first run, if the program runs with no value; empty otherwise."""
        return "" if self.problem is None else self.trials[0].error

    @property
    def problem(self) -> str | None:
        """The reason why the program runs with no value on any GPU; None if it runs with one."""
        problems = [answer.largest.problem for answer in self.answers]
        return next(iter(problems), None) if all(problems) else None

    @property
    def has_no_effect(self) -> bool:
        """True if all values that ran need the same memory, or none at all."""
        points = [answer.points for answer in self.answers]
        if not any(points):
            return False
        are_flat = all(len({point.peak for point in curve_points}) <= 1 for curve_points in points)
        are_several = max(map(len, points)) > 1
        return are_flat and (
            are_several or not any(point.peak for curve_points in points for point in curve_points)
        )

    def of(self, others: tuple[Value, ...]) -> tuple[Answer, ...]:
        """The answers of one combination, by the memory of the GPU."""
        return tuple(self._answers[others])

    def curves(self, others: tuple[Value, ...]) -> tuple[Curve, ...]:
        """The curves of one combination: one for all GPUs whose needs differ by less than 2%."""
        groups: list[list[Answer]] = []
        for answer in self.of(others):
            alike = next(
                (g for g in groups if runs_alike(g[0].gpu, answer.gpu, self._runs.reads)), None
            )
            if alike is None:
                groups.append([answer])
            else:
                alike.append(answer)
        curves: list[Curve] = []
        for group in groups:
            points = [point for answer in group for point in answer.points]
            curve = Curve.of([answer.name for answer in group], points)
            near = next((n for n, other in enumerate(curves) if other.is_near(curve)), None)
            if near is None:
                curves.append(curve)
            else:
                curves[near] = Curve.of(
                    [*curves[near].names, *curve.names], [*curve.points, *curves[near].points]
                )
        return tuple(curve for curve in curves if curve.points)

    def rows(self) -> list[dict[str, object]]:
        """One row for each GPU and combination: sizes are bytes, what is not known is None."""
        lines = {
            (others, name): curve.line
            for others in self.combinations
            for curve in self.curves(others)
            for name in curve.names
        }
        return [
            self._row(answer, lines.get((answer.others, answer.name))) for answer in self.answers
        ]

    def _row(self, answer: Answer, line: FittedLine | None) -> dict[str, object]:
        best, above = answer.best, answer.largest.above
        return {
            "gpu": answer.name,
            **{
                variable.name: value
                for variable, value in zip(self.others, answer.others, strict=True)
            },
            self.variable.name: answer.largest.value,
            "peak": None if best is None else best.reserved_peak,
            "headroom": None if best is None else best.headroom,
            "capacity": answer.gpu.total_memory,
            "context": answer.gpu.total_memory - answer.room,
            "next": None if above is None else above.value,
            "next_needs": None if above is None or above.problem else above.needed,
            "base": None if line is None else round(line.base),
            "per_item": None if line is None else round(line.per_item),
        }


def check_variables(variables: Sequence[Variable]) -> Variable:
    """The variable whose largest value is searched: the first range, or else the first numbers."""
    names = [variable.name for variable in variables]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} varies twice: give it once, with all of its values")
    numbers = [variable for variable in variables if variable.numbers is not None]
    if not numbers:
        raise UsageError(
            f"{names[0]} has no numbers, of which the largest that fits could be searched: vary"
            " one that has, such as --batch-size=1:512"
        )
    varied = next((number for number in numbers if number.is_range), numbers[0])
    count = math.prod(
        len(values_of_other(variable)) for variable in variables if variable is not varied
    )
    if count > _MOST_COMBINATIONS:
        raise UsageError(
            f"{count:,} combinations are too many, {_MOST_COMBINATIONS} is the most: give lists of"
            " few values, such as 512,2048"
        )
    return varied


def values_of_other(variable: Variable) -> tuple[Value, ...]:
    """All values of a variable that is not searched; of a range without a step, its doublings.

    >>> from pytorch_memlab.fitting.variable import read_variable
    >>> values_of_other(read_variable("--length=128:1000"))
    (128, 256, 512, 1000)
    """
    values = variable.values
    if not isinstance(values, range) or values.step > 1 or len(values) <= 2:
        return tuple(values)
    first, last = values[0], values[-1]
    doublings = [first]
    while (following := max(2 * doublings[-1], doublings[-1] + 1)) < last:
        doublings.append(following)
    return (*doublings, last)
