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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import UsageError
from .config_value import Value
from .curve import Line, Point, interpolated, upper_line
from .gpu_classes import runs_alike
from .search import Largest, Search, TriedValue
from .settings import Settings
from .trial import UNLIMITED, Trial, TrialRequest, run, run_all
from .variable import Variable
from .verdict import Verdict, needed_memory

if TYPE_CHECKING:
    from ..simulation.inspect import GPU
    from .change import Change
    from .target import Target

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The largest value on one GPU, as far as it is known."""

    name: str
    gpu: GPU
    room: int  # bytes of it that PyTorch can have
    others: tuple[Value, ...]
    largest: Largest
    verdicts: Mapping[int, Verdict]
    is_proven: bool

    @property
    def best(self) -> Verdict | None:
        """Of the largest value that fits."""
        value = self.largest.value
        return None if value is None else self.verdicts[value]

    @property
    def points(self) -> tuple[Point, ...]:
        """The reserved bytes that all values that ran need."""
        return tuple(
            Point(one.value, one.needed) for one in self.largest.tried if one.problem is None
        )


_NEAR: Final = 0.02


@dataclass(frozen=True, slots=True)
class Curve:
    """The memory that values need on GPUs where it is the same, or nearly so.

    That is the least memory that PyTorch's allocator serves all requests with. With more, it keeps
    more in its cache.
    """

    names: tuple[str, ...]
    points: tuple[Point, ...]

    def at(self, value: int) -> float | None:
        """The memory of a value: between the points, or on the line beyond; None before them."""
        line = self.line
        if line is not None and value > self.points[-1].value:
            return line.at(value)
        return interpolated(self.points, value)

    def is_near(self, other: Curve) -> bool:
        """True if two curves differ by less than 2 % where both are known."""
        pairs = [(self.at(point.value), point.peak) for point in other.points]
        pairs += [(other.at(point.value), point.peak) for point in self.points]
        known = [(a, b) for a, b in pairs if a is not None]
        return bool(known) and all(abs(a - b) <= _NEAR * b for a, b in known)

    @property
    def line(self) -> Line | None:
        """The curve where it is a line; None if less than two values ran."""
        return upper_line(self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridReport:
    """The largest values on several GPUs, as far as they are known."""

    program: str
    variable: Variable
    others: tuple[Variable, ...]
    combinations: tuple[tuple[Value, ...], ...]
    answers: tuple[Answer, ...]  # by combination, then by the memory of the GPU
    trials: tuple[Trial, ...]
    reads: frozenset[str]

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
        return tuple(one for one in self.answers if one.others == others)

    def curves(self, others: tuple[Value, ...]) -> tuple[Curve, ...]:
        """The curves of one combination: one for all GPUs whose needs differ by less than 2 %."""
        found: list[Curve] = []
        for alike in self._alike(self.of(others)):
            curve = _curve(alike)
            near = next((one for one in found if one.is_near(curve)), None)
            if near is None:
                found.append(curve)
            else:
                points = {point.value: point for point in (*curve.points, *near.points)}
                merged = tuple(sorted(points.values()))
                found[found.index(near)] = Curve((*near.names, *curve.names), merged)
        return tuple(one for one in found if one.points)

    def _alike(self, answers: Sequence[Answer]) -> list[list[Answer]]:
        """Groups of GPUs on which the same happens."""
        groups: list[list[Answer]] = []
        for one in answers:
            group = next((g for g in groups if runs_alike(g[0].gpu, one.gpu, self.reads)), None)
            if group is None:
                groups.append([one])
            else:
                group.append(one)
        return groups

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


def _curve(alike: Sequence[Answer]) -> Curve:
    """The curve of GPUs on which the same happens, as far as it is known."""
    needs = {point.value: point for one in alike for point in one.points}
    return Curve(tuple(one.name for one in alike), tuple(sorted(needs.values())))


class GridSearch:
    """Searches the largest value on several GPUs."""

    def __init__(
        self,
        target: Target,
        gpus: Sequence[tuple[str, GPU]],
        variables: Sequence[Variable],
        settings: Settings,
    ) -> None:
        self._variable = check_variables(variables)
        self._others = tuple(one for one in variables if one is not self._variable)
        self._target = target
        self._settings = settings
        self._runs = _Runs(target, settings)
        values = [values_of_other(one) for one in self._others]
        self._combinations = tuple(itertools.product(*values))
        ordered = sorted(gpus, key=lambda one: one[1].total_memory)
        self._groups = [
            [
                _GPUSearch(
                    name, gpu, settings.room(gpu), self._variable, others, self._changes(others)
                )
                for name, gpu in ordered
            ]
            for others in self._combinations
        ]

    def run(self, ended: Callable[[int, str], object] | None = None) -> None:
        """Search until everything is known."""
        for requests in iter(self._needed, []):
            for values in self._runs.run(requests):
                if ended is not None:
                    ended(len(self._runs.all), values)

    def report(self) -> GridReport:
        """The report so far."""
        return GridReport(
            program=self._target.name,
            variable=self._variable,
            others=self._others,
            combinations=self._combinations,
            answers=tuple(one.answer() for group in self._groups for one in group),
            trials=self._runs.all,
            reads=self._runs.reads,
        )

    def _changes(self, others: tuple[Value, ...]) -> tuple[Change, ...]:
        pairs = zip(self._others, others, strict=True)
        return tuple(one.place.set_to(value) for one, value in pairs)

    def _needed(self) -> list[tuple[GPU, tuple[Change, ...]]]:
        """Runs without which no search can go on, and some that will be needed soon."""
        firsts: list[tuple[GPU, tuple[Change, ...]]] = []
        seconds: list[tuple[GPU, tuple[Change, ...]]] = []
        for one in self._active():
            wanted = one.advance(self._runs, self._settings)
            firsts += [(one.gpu, one.with_value(value)) for value in wanted[:1]]
            seconds += [(one.gpu, one.with_value(value)) for value in wanted[1:]]
        needed: list[tuple[GPU, tuple[Change, ...]]] = []
        for gpu, changes in firsts:
            if not self._runs.is_covered(gpu, changes, needed):
                needed.append((gpu, changes))
        for gpu, changes in seconds if needed else ():
            if len(needed) < _EARLY and not self._runs.is_covered(gpu, changes, needed):
                needed.append((gpu, changes))
        return needed

    def _active(self) -> Iterator[_GPUSearch]:
        """Searches that may go on: the others of a group wait for that of its largest GPU."""
        for group in self._groups:
            first = group[-1]
            first.start(())
            first.advance(self._runs, self._settings)
            yield first
            if first.is_done:
                for one in group[:-1]:
                    one.start(first.answer().points)
                    yield one


class _GPUSearch:
    """The search on one GPU."""

    def __init__(
        self,
        name: str,
        gpu: GPU,
        room: int,
        variable: Variable,
        others: tuple[Value, ...],
        changes: tuple[Change, ...],
    ) -> None:
        self._name = name
        self.gpu = gpu
        self._room = room
        self._variable = variable
        self._others = others
        self._changes = changes
        self._search: Search | None = None
        self._verdicts: dict[int, Verdict] = {}
        self.is_done = False

    def start(self, hints: Sequence[Point]) -> None:
        """Begin, unless it has begun."""
        if self._search is None:
            self._search = Search(self._variable.numbers or (), self._room, hints, _SLACK)

    def with_value(self, value: int) -> tuple[Change, ...]:
        """All changes of a run."""
        return (*self._changes, self._variable.place.set_to(value))

    def advance(self, runs: _Runs, settings: Settings) -> tuple[int, ...]:
        """Go on as far as runs are there."""
        search = self._search
        if search is None or self.is_done:
            return ()
        while wanted := search.wanted():
            found = runs.find(self.gpu, self.with_value(wanted[0]))
            if found is None:
                return tuple(
                    value for value in wanted if runs.find(self.gpu, self.with_value(value)) is None
                )
            search.add(self._tried(wanted[0], found, runs, settings))
        self.is_done = True
        return ()

    def answer(self) -> Answer:
        """The answer so far."""
        nothing = Largest(None, (), 1)
        return Answer(
            name=self._name,
            gpu=self.gpu,
            room=self._room,
            others=self._others,
            largest=nothing if self._search is None else self._search.found(),
            verdicts=self._verdicts,
            is_proven=self.is_done,
        )

    def _tried(self, value: int, found: _Run, runs: _Runs, settings: Settings) -> TriedValue:
        problem = found.problem
        if problem is not None:
            return TriedValue(value=value, fits=False, problem=problem, is_final=found.is_final)
        one = settings.verdict(found.trial, self.gpu, self._name)
        self._verdicts[value] = one
        return TriedValue(
            value=value,
            fits=bool(one.fits),
            active=one.active_peak,
            reserved=one.reserved_peak,
            needed=self._needed(
                bool(one.fits), runs.needed(found.trial, one.device) or one.reserved_peak
            ),
        )

    def _needed(self, fits: bool, nearly: int) -> int:
        """Bytes that a value needs, which agree with the verdict."""
        return min(nearly, self._room) if fits else max(nearly, self._room + 1)


@dataclass(frozen=True, slots=True)
class _Run:
    """A trial, and the last line that its program printed before it failed."""

    trial: Trial
    last_line: str

    @property
    def problem(self) -> str | None:
        """The reason why the program does not run with its values; None if it runs."""
        if not self.trial.failed:
            return next((one for one in self.trial.findings if _is_unread(one)), None)
        if self.trial.error.startswith(_EXIT):
            return self.last_line or self.trial.error.strip()
        return error_line(self.trial.error)

    @property
    def is_final(self) -> bool:
        """True if the problem is one of all values."""
        is_unread = not self.trial.failed
        return is_unread or bool(_UNKNOWN_OPTION.search(self.problem or ""))


def _is_unread(finding: object) -> bool:
    return isinstance(finding, str) and finding.startswith("the program does not read")


class _Runs:
    """All runs of a program so far."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target = target
        self._settings = settings
        self._found: dict[tuple[str, ...], list[_Run]] = {}
        self.reads: frozenset[str] = frozenset()
        """Properties of GPUs that decided what ran."""
        self._needed: dict[tuple[int, int], int] = {}
        self._is_limited = False
        self._all: dict[int, Trial] = {}

    @property
    def all(self) -> tuple[Trial, ...]:
        """In the order in which they began."""
        return tuple(self._all[number] for number in sorted(self._all))

    def find(self, gpu: GPU, changes: tuple[Change, ...]) -> _Run | None:
        """The run that stands for a GPU, if there is one."""
        return next(
            (one for one in self._found.get(_names(changes), ()) if _stands_for(one.trial, gpu)),
            None,
        )

    def needed(self, trial: Trial, device: int) -> int:
        """Bytes with which a run without limit would just fit; 0 for another one."""
        key = (id(trial), device)
        if key not in self._needed:
            is_limited = trial.capacity != UNLIMITED or trial.history is None
            self._needed[key] = 0 if is_limited else needed_memory(trial, device)
        return self._needed[key]

    def is_covered(
        self,
        gpu: GPU,
        changes: tuple[Change, ...],
        needed: Sequence[tuple[GPU, tuple[Change, ...]]],
    ) -> bool:
        """True if one of some other runs will, as far as is known, stand for a GPU too."""
        names = _names(changes)
        return any(
            _names(others) == names and runs_alike(one, gpu, self.reads) for one, others in needed
        )

    def run(self, needed: Sequence[tuple[GPU, tuple[Change, ...]]]) -> Iterator[str]:
        """Run the program for some GPUs and changes; yields the names of these after each run."""
        first = len(self._all)
        requests = [self._request(first + n, *one) for n, one in enumerate(needed)]
        for number, trial in run_all(requests, self._settings.processes):
            if trial.failed and len(requests) > 1:  # another run at the same time may be the reason
                trial = run(requests[number])
            changes = needed[number][1]
            self._all[first + number] = trial
            self._add(trial, changes, requests[number].output)
            yield ", ".join(_names(changes))

    def _add(self, trial: Trial, changes: tuple[Change, ...], output: str) -> None:
        self.reads |= trial.gpu_reads
        self._is_limited = self._is_limited or trial.asked_for_memory
        run_ = _Run(trial, _last_line(output) if trial.failed else "")
        self._found.setdefault(_names(changes), []).append(run_)

    def _request(self, number: int, gpu: GPU, changes: tuple[Change, ...]) -> TrialRequest:
        name = f"{number + 1:03}"
        return self._settings.request(self._target, gpu, name, changes, is_limited=self._is_limited)


def _stands_for(trial: Trial, gpu: GPU) -> bool:
    is_limited = trial.capacity != UNLIMITED
    if trial.asked_for_memory and not is_limited:
        return False
    is_same = not is_limited or trial.gpu.total_memory == gpu.total_memory
    return is_same and runs_alike(trial.gpu, gpu, trial.gpu_reads)


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
