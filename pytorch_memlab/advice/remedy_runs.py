"""The runs of a program with remedies: one of it as it is, then one with each, and with several."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import psutil

from .._common.process.ipython import file_name
from ..fitting.change import Change
from ..fitting.search import Search, TriedValue
from ..fitting.trial import Ending, Trial, TrialRequest
from ..fitting.trial_run import run_all
from ..fitting.verdict import PartSeen, Verdict, rise_of_peak, verdict, with_room
from ..history.out_of_memory import OutOfMemory
from .around_program import AroundProgram, Finding, Outcome
from .at_peak import FactsAtPeak
from .batch_size import SmallerBatch
from .catalogue import most_helpful, names_fault
from .cause import Cause, Remedy, Results
from .changes import EditedSource, at_once
from .compared_values import Comparison, RecordedValues, Values, compared
from .rewriting import code_of
from .trial_records import Advice, Result, Together, TrialProgram

_WORTH: Final = 50
"""A remedy is worth its words if it saves this part of the peak."""
_WORTH_WITHOUT_ERROR: Final = 10
_MOST_TRIALS: Final = 5
_MOST_COMPARED: Final = 3
_MOST_OF_HOST: Final = 4
"""Runs with values may take this part of the memory that this machine has free."""
_MOST_BATCHES: Final = 8
_FIRST_STEPS: Final = 8
"""Steps after which a first trial ends: two optimizers in turn show by then how memory grows."""
_SECOND: Final = -1
"""Number of the program's second run with values."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of one trial, as plain data."""

    peak: int  # without limit, and to the end of loops that grow evenly
    is_exact: bool  # whether nothing of the program is left that may need more
    seen: PartSeen
    fits: bool | None  # None if the program failed
    is_whole: bool
    finding: Finding | None
    error: str
    place: str  # of the error, such as `` at a.py:3``; empty if it is not known
    is_stopped: bool  # whether what follows its loops failed


def _too_long(seconds: float) -> str:
    return f"a second run of the program takes longer than {seconds:.0f} s"


def remedies_to_try(likely: Sequence[tuple[Cause, Remedy]]) -> list[Remedy]:
    """The first ones that can be tried; a smaller batch is among them, if that is one."""
    can_be = [remedy for _, remedy in likely if remedy.change is not None]
    later = [remedy for remedy in can_be[_MOST_TRIALS:] if isinstance(remedy.change, SmallerBatch)]
    return [*can_be[: _MOST_TRIALS - len(later[:1])], *later[:1]]


def _short(program: TrialProgram) -> TrialProgram:
    """A program that ends soon after the step at which it failed, if that step is known."""
    if not program.settings.least_steps:
        return program
    settings = replace(program.settings, most_steps=_FIRST_STEPS, awaits_branches=False)
    return replace(program, settings=settings)


def _whole(program: TrialProgram) -> TrialProgram:
    """A program whose loops do not end early because they do not repeat."""
    settings = replace(program.settings, most_steps=sys.maxsize, most_iterations=sys.maxsize)
    return replace(program, settings=settings)


class RemedyRuns:
    """The program as it is, and with each remedy."""

    def __init__(self, program: TrialProgram, *, has_error: bool) -> None:
        self._program = program
        self._has_error = has_error
        self._known: list[tuple[Cause, Remedy]] = []
        self._tried: list[Remedy] = []
        self._ended: dict[int, _Ended] = {}  # 0 for the program as it is, then each of the remedies
        self._values: dict[int, Values] = {}
        self._batches: dict[int, SmallerBatch] = {}  # the largest that fits, where one was searched
        self._together: Together | None = None

    def facts_at_peak(self) -> OutOfMemory | None:
        unchanged = self._ended[0]
        if unchanged.fits is None:
            return None
        request = self._request(FactsAtPeak(unchanged.peak))
        [(_, trial)] = run_all([request])
        facts: OutOfMemory | None = trial.findings[-1] if trial.findings else None
        return facts

    def try_all(self, likely: Sequence[tuple[Cause, Remedy]]) -> None:
        self._known = list(likely)
        self._tried = remedies_to_try(likely)
        program = self._program
        short = _short(program)
        self._run_all(short)
        if self._ended[0].fits is None and short != program:
            # Perhaps it fails in a step that it did not come to, for want of memory.
            settings = replace(short.settings, steps=short.settings.least_steps)
            self._run_all(replace(short, settings=settings))
        if self._runs_longer:
            program = _whole(program)
            self._run_all(program)
        if self._reproduces:
            while self._try_otherwise():
                pass
            for index, remedy in enumerate(self._tried, 1):
                if isinstance(remedy.change, SmallerBatch) and self._has_error:
                    self._search_batch(index, remedy.change)
            if self._run_longer(program):
                while self._try_otherwise():
                    pass
            self._program = program
            if self._program.computes:
                self._compare()

    def _run_all(self, program: TrialProgram) -> None:
        """Run a program as it is and with each remedy, in place of what ran before."""
        self._program = program
        self._ended.clear()
        self._run_beside_unchanged()

    def _try_otherwise(self) -> bool:
        """Try the other edit of each remedy that failed; False if none has one."""
        again: dict[int, Change | None] = {}
        for index, remedy in enumerate(self._tried, 1):
            other = remedy.otherwise
            if other is not None and index in self._ended and self._result(index) is None:
                again[index] = other.change
                self._tried[index - 1] = other
                self._known = [
                    (cause, other if found_remedy is remedy else found_remedy)
                    for cause, found_remedy in self._known
                ]
        for index in again:
            del self._ended[index]
        self.run(again)
        return bool(again)

    def run(self, changes: Mapping[int, Change | None]) -> None:
        for number, end in self._ends(changes):
            self._ended[number] = end

    def _run_beside_unchanged(self) -> None:
        """Try all remedies; the program as it is runs first, and beside them, if it did not yet."""
        # The trials end with it if it does not end as it did before.
        changes: dict[int, Change | None] = {} if 0 in self._ended else {0: None}
        if changes or self._reproduces:
            changes |= {index: remedy.change for index, remedy in enumerate(self._tried, 1)}
        with closing(self._ends(changes)) as ends:
            for number, end in ends:
                self._ended[number] = end
                if 0 in self._ended and not self._reproduces:
                    return

    @property
    def _runs_longer(self) -> bool:
        """True if the program runs out of memory after more steps than a trial has."""
        unchanged = self._ended[0]
        return bool(self._has_error and unchanged.fits and not unchanged.is_exact)

    def run_whole(self) -> bool:
        """Run the program whole where its end is not known; False if that is nowhere."""
        return self._run_longer(_whole(self._program))

    def _run_longer(self, program: TrialProgram) -> bool:
        """Run longer what may need more than its trial; False if there is nothing."""
        changes: dict[int, Change | None] = {0: None}
        for index, remedy in enumerate(self._tried, 1):
            if self._result(index) is not None:
                changes[index] = self._batches.get(index, remedy.change)
        again = {n: change for n, change in changes.items() if not self._ended[n].is_exact}
        if len(changes) == 1 or not again or program == self._program:
            return False
        self._program = program
        ended: dict[int, _Ended] = {}
        with closing(self._ends(again)) as ends:
            for number, end in ends:
                ended[number] = end
                if number == 0 and end.fits is None:  # its longer run says nothing of remedies
                    return False
                # Peaks are compared with one that ran as long.
                if 0 in ended or 0 not in again:
                    self._ended.update(ended)
        return True

    def run_together(self) -> None:
        """Run the program with the first two remedies, or more, where none is enough alone."""
        # Those for faults come first, also where what lowers the peak of any program is enough.
        advice = self.advice("")
        tried = {
            number: (remedy.change, result)
            for number, (remedy, result) in enumerate(
                zip(advice.remedies, advice.results, strict=True), 1
            )
            if result is not None and isinstance(remedy.change, (EditedSource, AroundProgram))
        }
        for_faults = [number for number in tried if names_fault(advice.remedies[number - 1])]
        is_enough = {number for number, (_, result) in tried.items() if result.fits}
        if not self._has_error or is_enough.intersection(for_faults):
            self._together = None
            return
        wanted = for_faults if is_enough else [*dict.fromkeys([*for_faults, *tried])]
        groups, requests = [], []
        for count in range(2, len(wanted) + 1):
            those = tuple(sorted(wanted[:count]))
            changes = at_once([tried[number][0] for number in those])
            if changes is not None:
                groups.append(those)
                requests.append(self._request(*changes))
        ends: dict[int, _Ended] = {}
        with closing(run_all(requests)) as running:
            for index, trial in running:
                if all(map(_is_applied, trial.findings)):
                    ends[index] = self._end_of(self._with_room(requests[index], trial))
        for index, end in sorted(ends.items()):
            result = self._result_of(end)
            alone = (tried[number][1].saved for number in groups[index])
            if result is not None and result.saved > max(alone):
                self._together = Together(groups[index], result)
                if result.fits:
                    return

    def _ends(
        self, changes: Mapping[int, Change | None]
    ) -> Generator[tuple[int, _Ended], None, None]:
        requests = [
            self._request(*([] if change is None else [change])) for change in changes.values()
        ]
        numbers = list(changes)
        with closing(run_all(requests)) as running:
            for index, trial in running:
                yield numbers[index], self._end_of(self._with_room(requests[index], trial))

    def _with_room(self, request: TrialRequest, trial: Trial) -> Trial:
        """A trial, which runs again with the GPU's own memory if the program asked for it."""
        if not trial.asked_for_memory:
            return trial
        [(_, limited)] = run_all([replace(request, is_limited=True)])
        return with_room(limited, trial)

    def _search_batch(self, index: int, guess: SmallerBatch) -> None:
        """Find the largest batch that fits, by runs of the program."""
        search = Search(range(1, guess.largest), self._program.gpu.total_memory)
        value: int | None = guess.value
        while value is not None and len(search.tried) < _MOST_BATCHES:
            batch = guess.with_value(value)
            [(_, trial)] = run_all([self._request(batch)])
            end, result = self._end_of(trial), self._verdict(trial)
            needed = result.capacity - result.headroom
            room = result.capacity
            search.add(
                TriedValue(
                    value=value,
                    fits=bool(end.fits),
                    active=end.peak,
                    needed=min(needed, room) if end.fits else max(needed, room + 1),
                    problem=end.error or None if end.fits is None else None,
                )
            )
            if value == search.value:
                self._ended[index] = end
                self._batches[index] = batch
            value = next(iter(search.wanted()), None)

    def _compare(self) -> None:
        """Run the program twice with values, and those remedies that are worth it."""
        if self._ended[0].peak * _MOST_OF_HOST > psutil.virtual_memory().available:
            return
        changes: dict[int, Change | None] = {0: None, _SECOND: None}
        for index, remedy in enumerate(self._tried, 1):
            is_of_values = not isinstance(remedy.change, AroundProgram) or (
                remedy.change.has_other_values
            )
            if self._result(index) and is_of_values and len(changes) < _MOST_COMPARED + 2:
                changes[index] = remedy.change
        if len(changes) == 2:
            return
        # Steps take long with values: those up to the error, and some more, are enough.
        settings = self._program.settings
        settings = replace(settings, steps=settings.least_steps or None)
        requests = [
            self._request(*([] if change is None else [change]), RecordedValues())
            for change in changes.values()
        ]
        requests = [replace(request, settings=settings, computes=True) for request in requests]
        numbers = list(changes)
        with closing(run_all(requests)) as running:
            for index, trial in running:
                if not trial.failed and trial.findings:
                    self._values[numbers[index]] = trial.findings[-1]

    def _request(self, *changes: Change) -> TrialRequest:
        program = self._program
        return TrialRequest(program.target, program.gpu, program.settings, changes)

    def _verdict(self, trial: Trial) -> Verdict:
        return verdict(trial, self._program.gpu, "", self._program.settings)

    def _end_of(self, trial: Trial) -> _Ended:
        result = self._verdict(trial)
        finding = trial.findings[-1] if trial.findings else None
        is_whole = trial.ending is Ending.FINISHED
        frame = None if trial.problem is None else trial.problem.frame
        place = "" if frame is None else f" at {file_name(frame.filename)}:{frame.line}"
        rise, fits = rise_of_peak(trial, result.device), result.fits
        if fits and result.growth is not None and result.growth.last_step is not None:
            fits = result.growth.is_over
        return _Ended(
            result.active_peak + (rise or 0),
            rise is not None and trial.ending is not Ending.OUT_OF_MEMORY,
            result.seen,
            fits,
            is_whole,
            finding,
            trial.error,
            place,
            trial.stopped is not None,
        )

    @property
    def _reproduces(self) -> bool:
        """True if the program ends in the trial as it did before."""
        unchanged = self._ended.get(0)
        if unchanged is None or unchanged.fits is None:
            return False
        return not (self._has_error and unchanged.fits)

    def reason(self, seconds: float) -> str:
        """The reason why nothing was tried; empty if something was."""
        unchanged = self._ended.get(0)
        if unchanged is None:
            return _too_long(seconds)
        if self._reproduces:
            was_tried = len(self._ended) > 1 or not self._tried
            return "" if was_tried else f"no trial of a remedy ended within {seconds:.0f} s"
        if unchanged.fits:
            return "the program does not run out of memory when it runs again without values"
        last = unchanged.error.strip().splitlines()[-1:] or ["no reason is known"]
        return f"a second run of the program fails{unchanged.place}: {last[0]}"

    def reason_of_the_rest(self, seconds: float) -> str:
        """The reason why some remedies were not tried; empty if all were."""
        is_over = any(index not in self._ended for index in range(1, len(self._tried) + 1))
        return f"the trials had {seconds:.0f} s" if is_over else ""

    def advice(self, reason: str) -> Advice:
        """The remedies that help, and after an error those that were not tried."""
        results: dict[int, Result] = {}
        failed: set[int] = set()
        named: dict[int, Remedy] = {}
        for index, remedy in enumerate(self._tried, 1):
            if index not in self._ended:
                continue
            result = self._result(index)
            if result is None or not _keeps_its_word(remedy, result):
                failed.add(id(remedy))
                continue
            results[id(remedy)] = result
            code = _code(remedy, self._ended[index].finding)
            batch = self._batches.get(index)
            if batch is not None:
                remedy = replace(remedy, change=batch, code=batch.code)
            named[id(self._tried[index - 1])] = replace(remedy, code=code) if code else remedy
        kept = [(cause, remedy) for cause, remedy in self._known if id(remedy) not in failed]
        if self._has_error:
            kept.sort(key=lambda pair: not _makes_it_fit(results.get(id(pair[1]))))
        else:
            kept = [pair for pair in kept if id(pair[1]) in results]
            kept.sort(key=lambda pair: -results[id(pair[1])].saved)
        remedies = most_helpful(kept, lambda remedy: _makes_it_fit(results.get(id(remedy))))
        return Advice(
            tuple(named.get(id(remedy), remedy) for remedy in remedies),
            tuple(results.get(id(remedy)) for remedy in remedies),
            reason,
            self._together,
        )

    def _result(self, index: int) -> Result | None:
        """The outcome of a remedy; None if it failed, does not apply or is not worth its words."""
        end = self._ended.get(index)
        if end is None or not _is_applied(end.finding):
            return None
        values = [self._values.get(number) for number in (0, _SECOND, index)]
        first, again, edited = values
        comparison = None
        if first is not None and again is not None and edited is not None:
            comparison = compared(first, again, edited)
        return self._result_of(end, comparison)

    def _result_of(self, end: _Ended, comparison: Comparison | None = None) -> Result | None:
        before = self._ended[0].peak
        if end.fits is None or (end.is_stopped and not self._ended[0].is_stopped):
            return None
        result = Result(
            before,
            end.peak,
            bool(end.fits),
            end.is_whole,
            comparison,
            self._ended[0].is_exact,
            None if end.is_exact else end.seen,
        )
        part = _WORTH if self._has_error else _WORTH_WITHOUT_ERROR
        is_worth_it = (self._has_error and result.fits) or result.saved * part >= result.before
        return result if is_worth_it else None


def _is_applied(finding: Finding | None) -> bool:
    return finding is None or finding.outcome is Outcome.APPLIED


def _code(remedy: Remedy, finding: Finding | None) -> tuple[str, ...]:
    """The lines that a change found in the program; none where the remedy's are as good."""
    if finding is None:
        return ()
    if not finding.edits:
        has_place = any(line.startswith("# ") for line in remedy.code)
        return () if has_place else finding.code
    return (*code_of(finding.edits), *finding.commands)


def _makes_it_fit(result: Result | None) -> bool:
    return result is not None and result.fits


def _keeps_its_word(remedy: Remedy, result: Result) -> bool:
    """False for a remedy whose kind promises the same model, and that makes another one."""
    is_promised = remedy.results is not Results.UNKNOWN
    is_same = result.values is None or result.values.is_same_model(remedy.results.tolerance)
    return is_same or not is_promised
