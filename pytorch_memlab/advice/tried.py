"""A program with each of several remedies, on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..fitting.change import Change
from ..fitting.target import Target
from ..fitting.trial import Settings, Trial, TrialRequest
from ..fitting.trial_run import run_all
from ..fitting.verdict import Verdict, verdict, with_room
from ..history.out_of_memory import OutOfMemory
from ..simulation.inspect import GPU
from .around_program import AroundProgram, Finding, Outcome, applied, does_not_apply
from .at_peak import FactsAtPeak
from .block_survey import BlockSurvey, Survey
from .catalogue import candidates
from .cause import Remedy
from .causes.activations import Checkpointed, Checkpointing
from .changes import EditedSource
from .smallest_checkpointing import Smallest, smallest_checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """A program with one remedy."""

    name: str
    what_it_changes: str
    finding: Finding | None  # None if the program failed before the remedy found anything
    # of the program with the remedy; None if it was not applied, or the program failed
    verdict: Verdict | None
    error: str = ""  # the traceback of a program that the remedy makes fail; empty if it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """A program as it is and with remedies."""

    program: str
    unchanged: Verdict
    tried: tuple[TriedRemedy, ...]
    # the fewest blocks to checkpoint; None if that was not looked for
    smallest: Smallest | None = None
    step_flops: int = 0  # floating point operations of an optimizer step as it is; 0 if not known


@dataclass(frozen=True, slots=True)
class OneGPU:
    """Runs a program with changes on one GPU."""

    target: Target
    name: str
    gpu: GPU
    settings: Settings

    def verdicts(
        self,
        changes: Sequence[Change | None],
        ended: Callable[[], object] = lambda: None,
    ) -> list[Verdict]:
        """The verdicts with each of some changes, with the own memory if a program asks for it."""
        requests = [
            TrialRequest(self.target, self.gpu, self.settings, name="unchanged")
            if change is None
            else TrialRequest(self.target, self.gpu, self.settings, (change,), change.name)
            for change in changes
        ]
        trials: dict[int, Trial] = {}
        for index, trial in run_all(requests):
            trials[index] = trial
            ended()
        again = [index for index, trial in trials.items() if trial.asked_for_memory]
        limited = [replace(requests[index], is_limited=True) for index in again]
        for number, trial in run_all(limited):
            trials[again[number]] = with_room(trial, trials[again[number]])
        on_gpu = [
            verdict(trials[index], self.gpu, self.name, self.settings)
            for index in range(len(requests))
        ]
        # A history is large, and not needed any more.
        return [replace(verdict, trial=replace(verdict.trial, history=None)) for verdict in on_gpu]


class Recognised(AroundProgram):
    """The edit for a cause that the program has at its peak."""

    def __init__(self, name: str, remedy: Remedy, change: Change) -> None:
        self.name = name
        self.what_it_changes = remedy.results.value or remedy.why
        self._code = remedy.code
        self._change = change

    def environment(self) -> Mapping[str, str]:
        return self._change.environment()

    @contextmanager
    def applied(self) -> Iterator[None]:
        with self._change.applied():
            yield

    def finding(self) -> Finding:
        if isinstance(self._change, EditedSource):
            return applied((), self._change.edits)
        return applied(self._code)


class Unrecognised(AroundProgram):
    """The edit for a cause that the program does not have at its peak."""

    what_it_changes = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def finding(self) -> Finding:
        return does_not_apply("the program has no such cause at its peak")


def recognised(gpu: OneGPU, unchanged: Verdict, names: Sequence[str]) -> list[AroundProgram]:
    """The edits of some causes, as they apply at the peak; without names, of all that do."""
    # Without names, changes that ``fit --try`` has another name for are left out.
    [stopped] = gpu.verdicts([FactsAtPeak(unchanged.active_peak)])
    facts: OutOfMemory | None = _found(stopped.trial)
    edits: dict[str, AroundProgram] = {name: Unrecognised(name) for name in names}
    for cause, remedy in [] if facts is None else candidates(facts):
        name, change = cause.trial_name, remedy.change
        is_wanted = name in names if names else not isinstance(change, AroundProgram)
        if change is not None and is_wanted:
            edits[name] = Recognised(name, remedy, change)
    return list(edits.values())


def try_remedies(
    gpu: OneGPU,
    remedies: Sequence[AroundProgram],
    ended: Callable[[], object] = lambda: None,
    causes: Sequence[str] | None = (),
) -> Remedies:
    """A program as it is, and with each of some remedies."""
    # The edits of some causes are tried too; with None, of all causes at its peak. Where it does
    # not fit and activation checkpointing is among the remedies, the fewest blocks are looked for
    # whose checkpointing makes it fit.
    surveys = (
        [BlockSurvey()] if any(isinstance(remedy, Checkpointing) for remedy in remedies) else []
    )
    program = gpu.target.name
    verdicts = gpu.verdicts([None, *remedies, *surveys], ended)
    unchanged = verdicts[0]
    if unchanged.fits is None:
        return Remedies(program=program, unchanged=unchanged, tried=())
    tried = tuple(map(_tried, remedies, verdicts[1:]))
    if causes is None or causes:
        edits = recognised(gpu, unchanged, causes or ())
        tried += tuple(map(_tried, edits, gpu.verdicts(edits, ended)))
    survey: Survey | None = _found(verdicts[-1].trial) if surveys else None
    smallest = None
    for remedy in tried:
        is_wanted = isinstance(remedy.finding, Checkpointed) and unchanged.fits is False
        if is_wanted and remedy.verdict is not None:
            smallest = smallest_checkpointing(remedy.verdict, survey, gpu.verdicts, ended)
    flops = 0 if survey is None else survey.flops
    return Remedies(
        program=program, unchanged=unchanged, tried=tried, smallest=smallest, step_flops=flops
    )


def _tried(remedy: AroundProgram, verdict: Verdict) -> TriedRemedy:
    trial = verdict.trial
    finding: Finding | None = _found(trial)
    is_applied = finding is not None and finding.outcome is Outcome.APPLIED
    has_failed = verdict.fits is None
    return TriedRemedy(
        name=remedy.name,
        what_it_changes=remedy.what_it_changes,
        finding=finding,
        verdict=verdict if is_applied and not has_failed else None,
        error=trial.error if has_failed else "",
    )


def _found(trial: Trial) -> Any:
    """The finding of a trial's last change; None if the process was lost."""
    return trial.findings[-1] if trial.findings else None
