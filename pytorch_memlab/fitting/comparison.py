"""A program on several GPUs: as few runs as tell how it fits on each.

Note [Runs for several GPUs]
A run without a memory limit stands for every GPU on which the same happens; each of them gets a
verdict by a replay. Two kinds of program need more runs. One that asks how much memory there is
runs on each GPU with the memory of that GPU. One that catches out-of-memory errors and goes on,
with a smaller batch perhaps, runs on each GPU that its first way does not fit: one such run on the
largest of them shows whether it does so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .trial import Ending, Settings, Trial, TrialRequest, run, run_all
from .verdict import FitReport, Verdict, verdict
from .watched_gpu import runs_alike

if TYPE_CHECKING:
    from ..simulation.inspect import GPU
    from .target import Target


def compare_gpus(
    target: Target, gpus: Sequence[tuple[str, GPU]], settings: Settings
) -> Generator[tuple[int, Verdict], None, None]:
    """The verdicts on several GPUs."""
    yield from _Comparison(target, gpus, settings).verdicts()


def fit_report(
    target: Target,
    gpus: Sequence[tuple[str, GPU]],
    known: Iterable[tuple[int, Verdict]],
    settings: Settings,
) -> FitReport:
    """Put verdicts in the order of the GPUs' memory."""
    found = dict(known)
    ordered = sorted(found, key=lambda index: (found[index].capacity, index))
    unknown = tuple(name for index, (name, _) in enumerate(gpus) if index not in found)
    verdicts = tuple(found[index] for index in ordered)
    return FitReport(target.name, verdicts, unknown, settings.num_gpus, settings.steps)


class _Comparison:
    def __init__(self, target: Target, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> None:
        self._target = target
        self._gpus = gpus
        self._settings = settings
        self._pending = list(range(len(gpus)))
        self._too_large: list[tuple[int, Verdict]] = []

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        index, trial = 0, run(self._request(0))
        if trial.failed and len(self._gpus) > 1:
            # The GPU may be too old for the program, or it fails on all of them.
            others = [one for one in self._pending if not self._alike(trial, 0, one)]
            newest = max(others, key=self._capability, default=0)
            second = run(self._request(newest)) if newest else trial
            if second.failed:
                yield from [(one, self._verdict(trial, one)) for one in self._pending]
                return
            yield from self._shared(trial, 0)
            index, trial = newest, second
        yield from self._shared(trial, index)
        while self._pending:
            yield from self._run_classes(trial)
        yield from self._with_own_memory()

    def _capability(self, index: int) -> tuple[int, int]:
        gpu = self._gpus[index][1]
        return gpu.major, gpu.minor

    def _run_classes(self, known: Trial) -> Iterator[tuple[int, Verdict]]:
        """Run the program once for each class of GPUs that may differ."""
        if known.asked_for_memory:
            yield from self._run_limited(self._pending)
            self._pending = []
            return
        chosen: list[int] = []
        for index in self._pending:
            if not any(self._alike(known, one, index) for one in chosen):
                chosen.append(index)
        requests = [self._request(index) for index in chosen]
        for number, trial in run_all(requests, repeats_failed=True):
            yield from self._shared(trial, chosen[number])

    def _shared(self, trial: Trial, index: int) -> Iterator[tuple[int, Verdict]]:
        """The verdicts that follow from a run on one GPU."""
        if trial.asked_for_memory and not trial.failed:
            return
        for other in [one for one in self._pending if self._alike(trial, index, one)]:
            self._pending.remove(other)
            found = self._verdict(trial, other)
            if found.fits is False:
                self._too_large.append((other, found))
            else:
                yield other, found

    def _with_own_memory(self) -> Iterator[tuple[int, Verdict]]:
        """Find out whether a program that does not fit goes on after the error."""
        if not self._too_large:
            return
        found = dict(self._too_large)
        largest = max(found, key=lambda index: self._settings.room(self._gpus[index][1]))
        trial = run(self._request(largest, is_limited=True))
        if trial.failed or trial.ending is Ending.OUT_OF_MEMORY:
            yield from found.items()
            return
        yield largest, self._verdict(trial, largest)
        yield from self._run_limited([index for index in found if index != largest])

    def _run_limited(self, indexes: Sequence[int]) -> Iterator[tuple[int, Verdict]]:
        """Run the program on GPUs with their own memory."""
        indexes = list(indexes)
        requests = [self._request(index, is_limited=True) for index in indexes]
        for number, trial in run_all(requests, repeats_failed=True):
            yield indexes[number], self._verdict(trial, indexes[number])

    def _alike(self, trial: Trial, one: int, other: int) -> bool:
        return runs_alike(self._gpus[one][1], self._gpus[other][1], trial.gpu_reads)

    def _verdict(self, trial: Trial, index: int) -> Verdict:
        name, gpu = self._gpus[index]
        return verdict(trial, gpu, name, self._settings)

    def _request(self, index: int, *, is_limited: bool = False) -> TrialRequest:
        name, gpu = self._gpus[index]
        file = f"{_file_name(name)}{'-limited' if is_limited else ''}"
        return TrialRequest(self._target, gpu, self._settings, (), file, is_limited)


def _file_name(name: str) -> str:
    """A GPU as a part of a file name.

    >>> _file_name("gpus/mine.toml")
    'gpus_mine.toml'
    """
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name)
