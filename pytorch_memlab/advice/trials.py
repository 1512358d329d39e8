"""Remedies are tried: the program runs again with each of them, without values and without a GPU.

Note [Trials of remedies]
The process of the failed program holds its tensors and its changed modules. So a new Python runs
the trials: it imports torch once, and forks for each of them. A trial runs on a simulated GPU
without a limit, which tells the peak. Its allocations are replayed with the memory of the GPU,
which tells whether the program fits. The trials end together when their time is over. A remedy
whose trial did not end by then is not tried.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ..fitting.change import Change
from ..fitting.child import Work, run_in_children
from ..fitting.target import ProgramTarget
from ..fitting.trial import Ending, Settings, Trial, TrialRequest, run_all
from ..fitting.verdict import verdict
from ..history.out_of_memory import OutOfMemory
from ..simulation.inspect import GPU
from .around_program import Finding, Outcome
from .catalogue import candidates, most_likely
from .cause import Cause, Remedy

_WORTH: Final = 50
"""A remedy is worth its words if it saves this part of the peak."""
_MOST_TRIALS: Final = 5
_LEAST_SECONDS: Final = 10.0
"""Seconds that a short program gets: a new Python needs some to import torch."""
_MOST_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class TrialProgram:
    """A program that can run again, as it was started."""

    target: ProgramTarget
    gpu: GPU
    settings: Settings
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a program with one remedy."""

    before: int  # bytes in use at the peak without the remedy, on a GPU without a limit
    after: int  # the same with the remedy
    fits: bool  # as far as it ran
    is_whole: bool  # whether it ran to its end, or some steps beyond the error

    @property
    def saved(self) -> int:
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies for a program, the best one first, and what came of trying them."""

    remedies: tuple[Remedy, ...]
    results: tuple[Result | None, ...]  # of each remedy; None if it was not tried
    untried: str = ""  # why nothing was tried; empty if something was


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of one trial, as plain data."""

    peak: int
    fits: bool | None  # None if the program failed
    is_whole: bool
    finding: Finding | None
    error: str


@dataclass(frozen=True, slots=True)
class _Request:
    program: TrialProgram
    changes: tuple[Change | None, ...]
    seconds: float


def seconds_for(elapsed: float) -> float:
    """The time for all trials of a program that ran some seconds itself."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, elapsed))


def untried_advice(oom: OutOfMemory, reason: str = "") -> Advice:
    """The remedies by what the blocks in use tell."""
    remedies = tuple(most_likely(candidates(oom)))
    return Advice(remedies, (None,) * len(remedies), reason)


def tried_advice(oom: OutOfMemory, program: TrialProgram, seconds: float) -> Advice:
    """The remedies that a second run of the program confirms, and those that cannot be tried."""
    known = candidates(oom)
    tried = _to_try(known)
    request = _Request(program, (None, *(remedy.change for remedy in tried)), seconds)
    work = Work(_try_all, request, _lost, needs_new_python=True)
    [(_, ended)] = run_in_children([work], 1)
    unchanged = ended.get(0)
    if unchanged is None or unchanged.fits is not False:
        return untried_advice(oom, _reason(unchanged, seconds))
    results: dict[int, Result] = {}
    failed: set[int] = set()
    named: dict[int, Remedy] = {}
    for index, remedy in enumerate(tried, 1):
        end = ended.get(index)
        if end is None:
            continue
        result = Result(unchanged.peak, end.peak, bool(end.fits), end.is_whole)
        is_applied = end.finding is None or end.finding.outcome is Outcome.APPLIED
        is_worth_it = result.fits or result.saved * _WORTH >= result.before
        if end.fits is None or not is_applied or not is_worth_it:
            failed.add(id(remedy))
        else:
            results[id(remedy)] = result
            code = end.finding.code if end.finding is not None else ()
            named[id(remedy)] = replace(remedy, code=code) if code else remedy
    kept = [(cause, remedy) for cause, remedy in known if id(remedy) not in failed]
    kept.sort(key=lambda pair: not _makes_it_fit(results.get(id(pair[1]))))
    remedies = most_likely(kept)
    return Advice(
        tuple(named.get(id(remedy), remedy) for remedy in remedies),
        tuple(results.get(id(remedy)) for remedy in remedies),
    )


def changes_for(oom: OutOfMemory) -> list[Change]:
    """The changes that trials make for an out-of-memory error."""
    return [remedy.change for remedy in _to_try(candidates(oom)) if remedy.change is not None]


def _to_try(known: Sequence[tuple[Cause, Remedy]]) -> list[Remedy]:
    return [remedy for _, remedy in known if remedy.change is not None][:_MOST_TRIALS]


def _makes_it_fit(result: Result | None) -> bool:
    return result is not None and result.fits


def _reason(unchanged: _Ended | None, seconds: float) -> str:
    if unchanged is None:
        return f"a second run of the program takes longer than {seconds:.0f} s"
    if unchanged.fits:
        return "the program does not run out of memory when it runs again without values"
    last = unchanged.error.strip().splitlines()[-1:] or ["no reason is known"]
    return f"a second run of the program fails: {last[0]}"


def _lost(_status: int) -> dict[int, _Ended]:
    return {}


def _try_all(request: _Request) -> dict[int, _Ended]:
    """Run the trials in this process, which is a new one, until the time is over."""
    program = request.program
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    ended: dict[int, _Ended] = {}
    timer = threading.Timer(request.seconds, _thread.interrupt_main)
    timer.daemon = True
    timer.start()
    with suppress(KeyboardInterrupt):
        requests = [_trial_request(program, change) for change in request.changes]
        with closing(run_all(requests)) as running:
            for index, trial in running:
                if trial.asked_for_memory:
                    again = replace(requests[index], is_limited=True)
                    [(_, trial)] = run_all([again])
                ended[index] = _ended(trial, program)
    timer.cancel()
    return ended


def _trial_request(program: TrialProgram, change: Change | None) -> TrialRequest:
    changes = () if change is None else (change,)
    return TrialRequest(program.target, program.gpu, program.settings, changes)


def _ended(trial: Trial, program: TrialProgram) -> _Ended:
    result = verdict(trial, program.gpu, "", program.settings)
    finding = trial.findings[-1] if trial.findings else None
    is_whole = trial.ending is Ending.FINISHED
    return _Ended(result.active_peak, result.fits, is_whole, finding, trial.error)
