"""The largest value of a variable on several GPUs, for each combination of other variables.

Note [Runs that searches share]
One search of one GPU goes first. What it learns about the curve is a hint for the others, which
then run side by side. A run without a memory limit stands for every GPU on which the same happens,
so its result answers each search that wants its value.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from .config_value import Value
from .curve import Curve, Line, Point
from .search import Largest, Search, TriedValue
from .trial import Settings, Trial, TrialRequest, run_all
from .variable import Variable
from .verdict import Verdict, needed_memory, verdict
from .watched_gpu import runs_alike

if TYPE_CHECKING:
    from ..simulation.inspect import GPU
    from .target import Change, Target

_UNKNOWN_OPTION: Final = re.compile(
    r"unrecognized argument|no such option|unknown (command line )?(flag|option|argument)"
    r"|unexpected keyword argument|not used by the HfArgumentParser"
    r"|arguments are required|missing (option|argument|parameter)",
    re.I,
)
"""Messages of the usual readers of command lines about a wrong or missing option."""

_EARLY: Final = 2
"""Runs at once up to which values are tried that are likely to be needed next."""

_EXIT: Final = "the program ended with exit status"
"""Beginning of a trial's error whose program itself said what is wrong."""

_SLACK: Final = 40 * 2**20
"""Two segments of 20 MiB, of which the allocator makes blocks between 1 and 10 MiB."""

_MOST_COMBINATIONS: Final = 200

_Wanted = tuple["GPU", tuple["Change", ...]]
"""A run: on which GPU, and with what changes of the program."""


class Answer:
    """The search of the largest value on one GPU, and its answer as far as it is known."""

    def __init__(
        self, name: str, gpu: GPU, room: int, others: tuple[Value, ...], changes: tuple[Change, ...]
    ) -> None:
        self.name = name
        self.gpu = gpu
        self.room = room  # bytes of it that PyTorch can have
        self.others = others
        self.is_proven = False
        self._changes = changes  # that set the other variables
        self._search: Search | None = None
        self._verdicts: dict[int, Verdict] = {}

    @property
    def largest(self) -> Largest:
        """The largest value, and all that were tried."""
        return Largest(None, (), 1) if self._search is None else self._search.found()

    @property
    def best(self) -> Verdict | None:
        """Of the largest value that fits."""
        value = self.largest.value
        return None if value is None else self._verdicts[value]

    @property
    def points(self) -> tuple[Point, ...]:
        """The reserved bytes that all values that ran need."""
        return tuple(
            Point(one.value, one.needed) for one in self.largest.tried if one.problem is None
        )

    def advance(
        self, runs: _Runs, variable: Variable, settings: Settings, hints: Sequence[Point]
    ) -> list[_Wanted]:
        """Go on as far as runs are there: those that are wanted next, of which one is needed."""
        if self._search is None:
            self._search = Search(variable.numbers or (), self.room, hints, _SLACK)
        while values := self._search.wanted():
            wanted = [
                (self.gpu, (*self._changes, variable.place.set_to(value))) for value in values
            ]
            found = runs.find(*wanted[0])
            if found is None:
                return [one for one in wanted if runs.find(*one) is None]
            self._search.add(self._tried(values[0], found, settings))
        self.is_proven = True
        return []

    def _tried(self, value: int, found: _Run, settings: Settings) -> TriedValue:
        if found.problem is not None:
            return TriedValue(
                value=value, fits=False, problem=found.problem, is_final=found.is_final
            )
        one = self._verdicts[value] = verdict(found.trial, self.gpu, self.name, settings)
        needed = found.needed(one.device) or one.reserved_peak  # this agrees with the verdict
        return TriedValue(
            value=value,
            fits=bool(one.fits),
            active=one.active_peak,
            reserved=one.reserved_peak,
            needed=min(needed, self.room) if one.fits else max(needed, self.room + 1),
        )


class GridSearch:
    """Searches the largest value on several GPUs, and reports what is known so far."""

    def __init__(
        self,
        program: str,
        gpus: Sequence[tuple[str, GPU]],
        variables: Sequence[Variable],
        settings: Settings,
    ) -> None:
        self.variable = check_variables(variables)
        self.others = tuple(one for one in variables if one is not self.variable)
        self.program = program
        self._settings = settings
        self._runs = _Runs(settings)
        ordered = sorted(gpus, key=lambda one: one[1].total_memory)
        self._answers: dict[tuple[Value, ...], list[Answer]] = {}
        for values in itertools.product(*map(values_of_other, self.others)):
            pairs = zip(self.others, values, strict=True)
            changes = tuple(one.place.set_to(value) for one, value in pairs)
            self._answers[values] = [
                Answer(name, gpu, settings.room(gpu), values, changes) for name, gpu in ordered
            ]

    def run(
        self, target: Target, ended: Callable[[int, str], object] = lambda _runs, _latest: None
    ) -> None:
        """Search until everything is known; a report does not hold the function that was run."""
        for wanted in iter(self._needed, []):
            for values in self._runs.run(target, wanted):
                ended(len(self._runs.all), values)

    def _needed(self) -> list[_Wanted]:
        """Runs without which no search can go on, and some that will be needed soon."""
        wanted: list[list[_Wanted]] = []
        for group in self._answers.values():
            # The others of a group wait for that of its largest GPU.
            *others, first = group
            wanted.append(first.advance(self._runs, self.variable, self._settings, ()))
            if first.is_proven:
                hints = first.points
                wanted += [
                    one.advance(self._runs, self.variable, self._settings, hints) for one in others
                ]
        needed: list[_Wanted] = []
        for one in (runs[0] for runs in wanted if runs):
            if not self._runs.is_covered(one, needed):
                needed.append(one)
        for one in (run for runs in wanted for run in runs[1:]):
            if 0 < len(needed) < _EARLY and not self._runs.is_covered(one, needed):
                needed.append(one)
        return needed

    @property
    def combinations(self) -> tuple[tuple[Value, ...], ...]:
        """Of the values of the other variables."""
        return tuple(self._answers)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """By combination, then by the memory of the GPU."""
        return tuple(one for group in self._answers.values() for one in group)

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
        problems = [one.largest.problem for one in self.answers]
        return next(iter(problems), None) if all(problems) else None

    def of(self, others: tuple[Value, ...]) -> tuple[Answer, ...]:
        """The answers of one combination, by the memory of the GPU."""
        return tuple(self._answers[others])

    def curves(self, others: tuple[Value, ...]) -> tuple[Curve, ...]:
        """The curves of one combination: one for all GPUs whose needs differ by less than 2 %."""
        groups: list[list[Answer]] = []
        for one in self.of(others):
            alike = next(
                (g for g in groups if runs_alike(g[0].gpu, one.gpu, self._runs.reads)), None
            )
            if alike is None:
                groups.append([one])
            else:
                alike.append(one)
        found: list[Curve] = []
        for group in groups:
            points = [point for one in group for point in one.points]
            curve = Curve.of([one.name for one in group], points)
            near = next((n for n, one in enumerate(found) if one.is_near(curve)), None)
            if near is None:
                found.append(curve)
            else:
                found[near] = Curve.of(
                    [*found[near].names, *curve.names], [*curve.points, *found[near].points]
                )
        return tuple(one for one in found if one.points)

    def rows(self) -> list[dict[str, object]]:
        """One row for each GPU and combination: sizes are bytes, what is not known is None."""
        lines = {
            (others, name): curve.line
            for others in self.combinations
            for curve in self.curves(others)
            for name in curve.names
        }
        return [self._row(one, lines.get((one.others, one.name))) for one in self.answers]

    def _row(self, answer: Answer, line: Line | None) -> dict[str, object]:
        best, above = answer.best, answer.largest.above
        return {
            "gpu": answer.name,
            **{one.name: value for one, value in zip(self.others, answer.others, strict=True)},
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


class _Run:
    """A trial, and the reason why the program does not run with its values."""

    def __init__(self, trial: Trial, output: str) -> None:
        self.trial = trial
        self.problem: str | None = None  # None if it runs
        self.is_final = False  # whether the problem is one of all values
        self._needed: dict[int, int] = {}
        if not trial.failed:
            self.problem = next((one for one in trial.findings if _is_unread(one)), None)
            self.is_final = True
        else:
            self.problem = error_line(trial.error)
            if trial.error.startswith(_EXIT):
                self.problem = _last_line(output) or trial.error.strip()
            self.is_final = bool(_UNKNOWN_OPTION.search(self.problem))

    def needed(self, device: int) -> int:
        """Bytes with which a run without limit would just fit; 0 for another one."""
        if device not in self._needed:
            is_known = not self.trial.is_limited and self.trial.history is not None
            self._needed[device] = needed_memory(self.trial, device) if is_known else 0
        return self._needed[device]


def _is_unread(finding: object) -> bool:
    return isinstance(finding, str) and finding.startswith("the program does not read")


class _Runs:
    """All runs of a program so far."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[tuple[str, ...], list[_Run]] = {}
        self.reads: frozenset[Any] = frozenset()
        """Properties of GPUs that decided what ran."""
        self._is_limited = False
        self._all: dict[int, Trial] = {}

    @property
    def all(self) -> tuple[Trial, ...]:
        """In the order in which they began."""
        return tuple(self._all[number] for number in sorted(self._all))

    def find(self, gpu: GPU, changes: tuple[Change, ...]) -> _Run | None:
        """The run that stands for a GPU, if there is one."""
        runs = self._found.get(_names(changes), ())
        return next((one for one in runs if _stands_for(one.trial, gpu)), None)

    def is_covered(self, wanted: _Wanted, others: Sequence[_Wanted]) -> bool:
        """True if one of some other runs will, as far as is known, stand for this one too."""
        gpu, changes = wanted
        return any(
            _names(same) == _names(changes) and runs_alike(one, gpu, self.reads)
            for one, same in others
        )

    def run(self, target: Target, wanted: Sequence[_Wanted]) -> Iterator[str]:
        """Run the program for some GPUs and changes; yields the names of these after each run."""
        first = len(self._all)
        requests = [
            TrialRequest(target, gpu, self._settings, changes, f"{number:03}", self._is_limited)
            for number, (gpu, changes) in enumerate(wanted, first + 1)
        ]
        for number, trial in run_all(requests, repeats_failed=True):
            request, names = requests[number], _names(requests[number].changes)
            self._all[first + number] = trial
            self.reads |= trial.gpu_reads
            self._is_limited = self._is_limited or trial.asked_for_memory
            self._found.setdefault(names, []).append(_Run(trial, request.output))
            yield ", ".join(names)


def _stands_for(trial: Trial, gpu: GPU) -> bool:
    if trial.is_limited:
        has_memory = trial.gpu.total_memory == gpu.total_memory
    else:
        has_memory = not trial.asked_for_memory
    return has_memory and runs_alike(trial.gpu, gpu, trial.gpu_reads)


def _names(changes: Sequence[Change]) -> tuple[str, ...]:
    return tuple(change.name for change in changes)


def _last_line(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""


def error_line(text: str) -> str:
    r"""The line of a traceback that says what the error is.

    >>> error_line('Traceback ...\n  File "a.py", line 1\n    f()\nValueError: no\nnot so\n')
    'ValueError: no'
    """
    lines = [line for line in text.splitlines() if line.strip()]
    last_frame = max((n for n, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    return next((line for line in lines[last_frame + 1 :] if not line.startswith(" ")), text)


def check_variables(variables: Sequence[Variable]) -> Variable:
    """The variable whose largest value is searched: the first range, or else the first numbers."""
    names = [one.name for one in variables]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} varies twice: give it once, with all of its values")
    numbers = [one for one in variables if one.numbers is not None]
    if not numbers:
        raise UsageError(
            f"{names[0]} has no numbers, of which the largest that fits could be searched: vary"
            " one that has, such as --batch-size=1:512"
        )
    found = next((one for one in numbers if one.is_range), numbers[0])
    count = math.prod(len(values_of_other(one)) for one in variables if one is not found)
    if count > _MOST_COMBINATIONS:
        raise UsageError(
            f"{count:,} combinations are too many, {_MOST_COMBINATIONS} is the most: give lists of"
            " few values, such as 512,2048"
        )
    return found


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
