"""A program on several GPUs: as few runs as tell how it fits on each.

Note [Runs for several GPUs]
A run without a memory limit stands for every GPU on which the same happens; each of them gets a
verdict by a replay. Two kinds of program need more runs. One that asks how much memory there is
runs on each GPU with the memory of that GPU. One that catches out-of-memory errors and goes on,
with a smaller batch perhaps, runs on each GPU that its first way does not fit: one such run on the
largest of them shows whether it does so.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ..simulation.inspect import GPU, PRESETS, find_gpu
from .change import Change
from .growth import LoopGrowth
from .program_error import ENDED_ITSELF
from .target import Target
from .trial import Ending, Settings, Trial, TrialRequest
from .trial_run import run_all
from .verdict import FitReport, Verdict, needed_memory, verdict, with_room
from .watched_gpu import runs_alike

_MOST_STEPS: Final = 200
"""Steps or iterations up to which an expected failure is reached by running them."""

_UNKNOWN_OPTION: Final = re.compile(
    r"unrecognized argument|no such option|unknown (command line )?(flag|option|argument)"
    r"|unexpected keyword argument|not used by the HfArgumentParser"
    r"|arguments are required|missing (option|argument|parameter)",
    re.I,
)
"""Messages of the usual readers of command lines about a wrong or missing option."""

Wanted = tuple[GPU, tuple[Change, ...]]
"""A run: on which GPU, and with what changes of the program."""


class TrialRun:
    """A trial, and the reason why the program does not run with its values."""

    def __init__(self, trial: Trial, output: str) -> None:
        self.trial = trial
        self.problem: str | None = None  # None if it runs
        self.is_final = False  # whether the problem is one of all values
        self._needed: dict[int, int] = {}
        if not trial.failed:
            # A text is found by a change of a file that the program does not read.
            self.problem = next(
                (finding for finding in trial.findings if isinstance(finding, str)), None
            )
            self.is_final = True
        else:
            self.problem = error_line(trial.error)
            if trial.error.startswith(ENDED_ITSELF):
                self.problem = _last_line(output) or trial.error.strip()
            self.is_final = bool(_UNKNOWN_OPTION.search(self.problem))

    def stands_for(self, gpu: GPU) -> bool:
        trial = self.trial
        if trial.is_limited:
            has_memory = trial.gpu.total_memory == gpu.total_memory
        else:
            has_memory = not trial.asked_for_memory
        return has_memory and runs_alike(trial.gpu, gpu, trial.gpu_reads)

    def needed(self, device: int) -> int:
        """Bytes with which a run without limit would just fit; 0 for another one."""
        if device not in self._needed:
            is_known = not self.trial.is_limited and self.trial.history is not None
            self._needed[device] = needed_memory(self.trial, device) if is_known else 0
        return self._needed[device]


class Runs:
    """All runs of a program so far."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[tuple[str, ...], list[TrialRun]] = {}
        self.reads: frozenset[Any] = frozenset()
        """Properties of GPUs that decided what ran."""
        self._all: dict[int, Trial] = {}

    @property
    def ask_for_memory(self) -> bool:
        """True if the program asked how much memory a GPU has."""
        return "total_memory" in self.reads

    @property
    def all(self) -> tuple[Trial, ...]:
        """In the order in which they began."""
        return tuple(self._all[number] for number in sorted(self._all))

    def find(self, gpu: GPU, changes: tuple[Change, ...] = ()) -> TrialRun | None:
        """The run that stands for a GPU, if there is one."""
        runs = self._found.get(_names(changes), ())
        return next((run for run in runs if run.stands_for(gpu)), None)

    def is_covered(self, wanted: Wanted, others: Sequence[Wanted]) -> bool:
        """True if one of some other runs will, as far as is known, stand for this one too."""
        gpu, changes = wanted
        return any(
            _names(same) == _names(changes) and runs_alike(other, gpu, self.reads)
            for other, same in others
        )

    def run(
        self,
        target: Target,
        wanted: Sequence[Wanted],
        files: Sequence[str],
        *,
        is_limited: bool = False,
    ) -> Iterator[tuple[int, Trial]]:
        """Run the program for some GPUs and changes; what it prints goes to files of some names."""
        # With its own memory each, where that is asked for or the program asks how much there is.
        first = len(self._all)
        is_limited = is_limited or self.ask_for_memory
        requests = [
            TrialRequest(target, gpu, self._settings, changes, file, is_limited)
            for (gpu, changes), file in zip(wanted, files, strict=True)
        ]
        for number, trial in run_all(requests, repeats_failed=True):
            request, names = requests[number], _names(requests[number].changes)
            self._all[first + number] = trial
            self.reads |= trial.gpu_reads
            self._found.setdefault(names, []).append(TrialRun(trial, request.output))
            yield number, trial


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


def named_gpus(gpus: Any) -> list[tuple[str, GPU]]:
    """One GPU or several by their names, each once; all presets for None."""
    if gpus is None:
        return list(PRESETS.items())
    by_name: dict[str, GPU] = {}
    for gpu in [gpus] if isinstance(gpus, (str, int, GPU)) else gpus:
        name = gpu.name if isinstance(gpu, GPU) else str(gpu).strip()
        by_name[name] = find_gpu(name if isinstance(gpu, str) else gpu)
    return list(by_name.items())


def compare_gpus(
    target: Target, gpus: Sequence[tuple[str, GPU]], settings: Settings
) -> Generator[tuple[int, Verdict], None, None]:
    """The verdicts on several GPUs, as they become known. See Note [Runs for several GPUs]."""
    growing: dict[int, LoopGrowth] = {}
    for index, judged in _Comparison(target, gpus, settings).verdicts():
        growth = None if settings.steps is not None else _failing(judged)
        if growth is None:
            yield index, judged
        else:
            growing[index] = growth
    if growing:  # the steps that are expected run too, and as many to see that nothing grows
        most = {
            are_steps: 2 * max(repeated.last_step or 0 for repeated in those)
            for are_steps in (True, False)
            if (
                those := [
                    repeated
                    for repeated in growing.values()
                    if repeated.repeated.are_steps == are_steps
                ]
            )
        }
        longer = replace(
            settings,
            most_steps=most.get(True, settings.most_steps),
            most_iterations=most.get(False, settings.most_iterations),
        )
        named = [gpus[index] for index in growing]
        for number, judged in _Comparison(target, named, longer).verdicts():
            index = list(growing)[number]
            if judged.failure is not None and judged.growth is None:  # the loop came to its end
                judged = replace(judged, growth=growing[index])
            yield index, judged


def _failing(judged: Verdict) -> LoopGrowth | None:
    """The growth that is expected to run out of memory soon; None without one."""
    growth = judged.growth
    if not judged.fits or growth is None or growth.is_over or growth.last_step is None:
        return None
    return growth if growth.last_step <= _MOST_STEPS else None


class _Comparison:
    """The runs of a program for several GPUs, and the verdicts, by the places of the GPUs."""

    def __init__(self, target: Target, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> None:
        self._target = target
        self._gpus = gpus
        self._settings = settings
        self._runs = Runs(settings)
        self._pending = list(range(len(gpus)))
        self._too_large: dict[int, Verdict] = {}

    def verdicts(self) -> Generator[tuple[int, Verdict], None, None]:
        """The verdicts, as they become known."""
        trial = self._run_on_first()
        # The GPU may be too old for the program, or it fails on all of them.
        if trial.failed and not self._runs_on_another(trial):
            yield from [(index, self._judged(index, trial)) for index in self._pending]
            return
        yield from self._all_judged()
        while self._pending:
            for _ in self._run(self._to_run()):
                yield from self._all_judged()
        if self._too_large:
            yield from self._with_limits()

    def _run(
        self, indexes: Sequence[int], *, is_limited: bool = False
    ) -> Iterator[tuple[int, Trial]]:
        """Run the program on some GPUs."""
        end = "-limited" if is_limited or self._runs.ask_for_memory else ""
        files = [f"{_file_name(self._gpus[index][0])}{end}" for index in indexes]
        wanted = [self._wanted(index) for index in indexes]
        for number, trial in self._runs.run(self._target, wanted, files, is_limited=is_limited):
            yield indexes[number], trial

    def _wanted(self, index: int) -> Wanted:
        return self._gpus[index][1], ()

    def _judged(self, index: int, trial: Trial) -> Verdict:
        name, gpu = self._gpus[index]
        return verdict(with_room(trial, self._runs.all[0]), gpu, name, self._settings)

    def _all_judged(self) -> Iterator[tuple[int, Verdict]]:
        """The verdicts that follow from the runs so far, but for those that need another run."""
        for index in self._pending.copy():
            run = self._runs.find(self._gpus[index][1])
            if run is None:
                continue
            self._pending.remove(index)
            judged = self._judged(index, run.trial)
            if judged.failure is not None and not run.trial.is_limited:
                self._too_large[index] = judged
            else:
                yield index, judged

    def _run_on_first(self) -> Trial:
        (_, trial), *_ = self._run([0])
        if trial.failed and trial.asked_for_memory:  # no GPU has as much as it was told
            (_, trial), *_ = self._run([0])
        return trial

    def _runs_on_another(self, failed: Trial) -> bool:
        """True if a program that failed on the first GPU runs on the newest that differs."""
        _, first = self._gpus[0]
        others = {
            (gpu.major, gpu.minor, -index): index
            for index, (_, gpu) in enumerate(self._gpus)
            if not runs_alike(first, gpu, failed.gpu_reads)
        }
        return bool(others) and not next(self._run([others[max(others)]]))[1].failed

    def _to_run(self) -> list[int]:
        """GPUs without a verdict that need a run each, as far as is known."""
        chosen: list[int] = []
        for index in self._pending:
            if not self._runs.is_covered(self._wanted(index), list(map(self._wanted, chosen))):
                chosen.append(index)
        return chosen

    def _with_limits(self) -> Iterator[tuple[int, Verdict]]:
        """The verdicts on GPUs that are too small for the program as it runs without a limit."""
        largest = max(self._too_large, key=lambda index: self._settings.room(self._gpus[index][1]))
        _, trial = next(self._run([largest], is_limited=True))
        if trial.failed or trial.ending is Ending.OUT_OF_MEMORY:
            yield from self._too_large.items()
            return
        yield largest, self._judged(largest, trial)
        rest = [index for index in self._too_large if index != largest]
        limited = self._run(rest, is_limited=True)
        yield from [(index, self._judged(index, trial)) for index, trial in limited]


def fit_report(
    target: Target,
    gpus: Sequence[tuple[str, GPU]],
    judged: Iterable[tuple[int, Verdict]],
    settings: Settings,
) -> FitReport:
    """Put verdicts in the order of the GPUs' memory."""
    by_index = dict(judged)
    ordered = sorted(by_index, key=lambda index: (by_index[index].capacity, index))
    unknown = tuple(name for index, (name, _) in enumerate(gpus) if index not in by_index)
    verdicts = tuple(by_index[index] for index in ordered)
    return FitReport(target.name, verdicts, unknown, settings.num_gpus, settings.steps)


def _file_name(name: str) -> str:
    """A GPU as a part of a file name.

    >>> _file_name("gpus/mine.toml")
    'gpus_mine.toml'
    """
    return "".join(
        character if character.isalnum() or character in "-_." else "_" for character in name
    )
