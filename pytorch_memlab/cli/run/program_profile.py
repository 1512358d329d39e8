"""The profile of a program that ``run`` runs, and its report."""

from __future__ import annotations

import argparse
import builtins
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from ..._common.interrupts.whole_block import whole_block
from ..._common.patching.patches import Patches
from ..._common.process.garbage_collection import no_garbage_collection
from ..._common.process.main_program import Program
from ..._common.process.uncaught_errors import first_line
from ..._common.text.secrets_in_arguments import masked
from ...devices import simulated_machine
from ...history.model import AllocationHistory
from ...line_profiler.columns import DEFAULT_COLUMNS
from ...line_profiler.facts_of_run import combined, with_run_peaks
from ...line_profiler.line_profiler import LineProfiler
from ...line_profiler.line_records import RecordsDisplay
from ...line_profiler.profile import (
    global_line_profiler,
    printed_at_exit,
    profile,
    take_over_printing,
)
from ...line_profiler.source_functions import Definition
from ...profiles.growing_loops import growing_loops
from ...profiles.overview import Choice
from ...profiles.privacy import without_private_facts
from ...profiles.recorded import ProgramError, RecordedProfile
from ...records import Section
from ...render.output_format import RunResults
from ...scopes import DevicePeaks, RunPeaks
from ..ending_signals import EndedBySignal
from ..exit_codes import FAILED, INTERRUPTED
from ..notices import tell_unused_gpu
from ..output import results_of
from .sections import CategoryReport, StepLeaks
from .steps import Steps, progress_shown
from .targets import ImportedFunctions, functions_of, named_functions

_ASKS_FOR_HELP: Final = frozenset({"-h", "--help", "--version"})


def put_profile_in_builtins(process: ExitStack) -> None:
    """Let a bare ``@profile`` work, as under ``kernprof``; a program's own name goes before it."""
    if not hasattr(builtins, "profile"):
        patches = Patches()
        process.callback(patches.undo, keeps_later=True)
        patches.set(builtins, "profile", profile)


class Profile:
    """The profile of one program: of functions named, functions decorated, or else all."""

    # None stands for the columns that decorators of the program ask for or the default ones, for
    # every device in use, and for tables in place of the report that is chosen.

    def __init__(
        self,
        program: Program,
        options: argparse.Namespace,
        columns: tuple[str, ...] | None,
        choice: Choice | None,
        steps: Steps,
        others: Sequence[CategoryReport | StepLeaks],
        *,
        keeps_history: bool,
    ) -> None:
        names, device = options.functions or (), options.device
        self.error: ProgramError | None = None
        """The error that ended the program, once it is explained."""
        self._choice = choice
        self._saves_history = options.history
        self._is_private = options.private
        self._others = others
        self._columns = columns
        self._decorated: list[tuple[Any, tuple[str, ...]]] = []
        self._device = device
        self._steps = steps
        self._profiler = LineProfiler(
            target_gpu=device, history=keeps_history, history_max=options.history_max
        )
        self._peaks = RunPeaks(device)
        self._process = os.getpid()
        self._seconds_before = _seconds_of_processes()
        self._argv = program.argv
        self._program_showed_tables = False
        self.is_critical = False
        """True if memory is short, or grows; known when the run has ended."""
        self._are_named = bool(names)
        self._add_functions(program, names)

    def _add_functions(self, program: Program, names: Sequence[str]) -> None:
        """Profile the functions that names mean, or else all of the program."""
        source = functions_of(program)
        named = named_functions(program, source, names)
        self._globs = named.globs
        self._imported = ImportedFunctions(named.globs, self._profiler)
        self._named = [getattr(target, "qual_name", target) for target in named.exact]
        for target in named.functions if names else [*source.defined, source.top_level]:
            if isinstance(target, Definition):
                source.add_to(self._profiler, target)
            else:
                self._profiler.add_function(target)

    def history(self) -> AllocationHistory:
        return self._profiler.history()

    def start(self, process: ExitStack) -> None:
        """Notice if the program itself shows tables, and find functions in its modules."""
        process.callback(self._stop)
        patches = process.enter_context(Patches())
        patches.around(LineProfiler, "print_stats")(self._noticed)
        patches.around(RecordsDisplay, "__repr__", "_repr_html_")(self._noticed)
        if self._globs:
            self._imported.add_imported()
            process.enter_context(self._imported.watching_imports())
        decorators = global_line_profiler
        if self._device is not None:
            process.callback(setattr, decorators, "target_gpu", decorators.target_gpu)
            decorators.target_gpu = self._device
        if self._steps.warmup:
            process.callback(decorators.release)
            decorators.disable()

    def _stop(self) -> None:
        self._profiler.disable()
        self._peaks.end()

    @whole_block
    def measuring(self) -> Iterator[None]:
        """Measure the program that runs within, in the steps that were asked for."""
        try:
            progress = progress_shown(simulated_machine(), lambda: self._steps.done)
            with progress, self._steps.counted(self._begin, self._end):
                yield
        finally:
            # The tables of @profile are part of this report.
            self._decorated = take_over_printing()

    def _begin(self) -> None:
        self._peaks.begin()
        self._profiler.enable()
        global_line_profiler.release()

    def _end(self) -> None:
        self._profiler.disable()
        self._peaks.end()
        global_line_profiler.disable()

    def note_failure(self, error: BaseException) -> None:
        """Mark the lines at which an error says that a GPU ran out of memory."""
        self._profiler.note_failure(error)
        global_line_profiler.note_failure(error)

    @no_garbage_collection()  # which takes most of the time of a report of many functions
    def finish(
        self,
        write: Callable[[RunResults], object],
        has_ranks: Callable[[], bool],
        is_asked_for: bool,
    ) -> None:
        """End measuring, and show the tables; not in a process that the program forked."""
        self._stop()
        program_did = self._program_showed_tables and not self._are_named and not self._decorated
        if os.getpid() == self._process and (is_asked_for or not program_did):
            error = sys.exc_info()[1]
            sections = tuple(section for other in self._others for section in other.sections())
            recorded = self._recorded(self._decorated, *_ending(error), sections)
            self.is_critical = _is_critical(recorded)
            if self._is_private:
                recorded = without_private_facts(recorded)
            results = results_of(recorded, self._columns, self._choice, tells_runs=False)
            if not self._saves_history:
                results = replace(results, recorded=replace(recorded, history=None))
            write(results)
            report = results.report
            shows_memory = report.tables and not {"hits", "time"}.issuperset(report.columns)
            if shows_memory and not (has_ranks() or _ended_early(error, self._argv)):
                tell_unused_gpu(started_processes=_seconds_of_processes() > self._seconds_before)

    def peaks(self) -> Mapping[str, DevicePeaks]:
        """The peaks of the run so far by the names of the devices; none in a forked process."""
        return self._peaks.highest if os.getpid() == self._process else {}

    def begin(self) -> None:
        """Nothing: what attaches finds the recording going on."""

    def end(self) -> None:
        """Nothing: the recording goes on when what was attached has gone."""

    def recorded(self) -> RecordedProfile:
        """The profile so far of a program that goes on, without its allocations."""
        return self._recorded(printed_at_exit(), None, "", (), with_history=False)

    def _recorded(
        self,
        decorators: Sequence[tuple[Any, tuple[str, ...]]],
        status: int | None,
        exception: str,
        sections: tuple[Section, ...],
        *,
        with_history: bool = True,
    ) -> RecordedProfile:
        decorated = [function for function, _ in decorators]
        own = self._profiler.recorded(with_history=with_history)
        # The functions that were named; of patterns, those that ran.
        ran = self._profiler.records().functions_that_ran() if self._are_named else []
        named = [*self._named, *(name for name in ran if name not in self._named)]
        indexes = self._profiler.indexes_of(named) if named else () if decorated else None
        own = replace(own, shown=indexes, notes=(*self._unmatched(), *own.notes))
        parts = [own]
        if decorated:
            indexes = global_line_profiler.indexes_of(decorated)
            of_decorators = replace(global_line_profiler.recorded(), shown=indexes)
            # What is shown comes first, as the profiler that shows it has it.
            parts = [own, of_decorators] if self._are_named else [of_decorators, own]
        run = replace(
            own.runs[0],
            program=self._argv[0],
            arguments=masked(self._argv[1:]),
            exit_status=status,
            exception=exception,
        )
        asked = dict.fromkeys(column for _, columns in decorators for column in columns)
        whole = combined(parts, self._columns or tuple(asked) or DEFAULT_COLUMNS)
        return replace(
            whole,
            growing=growing_loops(whole),
            runs=(run,),
            devices=with_run_peaks(whole.devices, self._peaks.highest),
            sections=sections,
            errors=() if self.error is None else (self.error,),
        )

    def _unmatched(self) -> list[str]:
        return [
            f"no function matched -f {glob.text} in the modules that the program imported"
            for glob in self._globs
            if not glob.has_matched
        ]

    def _noticed(self, shows: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._program_showed_tables = True
        return shows(*args, **kwargs)


def _is_critical(recorded: RecordedProfile) -> bool:
    """True if a GPU is nearly full, or a loop leaves a large part of what is in use."""
    devices = {device.device.name: device for device in recorded.devices}
    return any(
        device.peak_reserved * 10 >= device.capacity * 9 > 0 for device in devices.values()
    ) or any(
        loop.nbytes * 10 >= devices[loop.device].peak_active
        for loop in recorded.growing
        if loop.device in devices
    )


def _ended_early(error: BaseException | None, argv: Sequence[str]) -> bool:
    """True for a program that failed, or that only showed its help or version."""
    if error is None:
        return False
    if not isinstance(error, SystemExit) or error.code:
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_parser = bool(frames) and frames[-1].f_globals.get("__name__") == "argparse"
    return is_of_parser or not _ASKS_FOR_HELP.isdisjoint(argv)


def _seconds_of_processes() -> float:
    """The CPU time of the processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _ending(error: BaseException | None) -> tuple[int, str]:
    """The exit status of a program that an exception ended, or none, and the exception."""
    if error is None:
        return 0, ""
    if isinstance(error, EndedBySignal):
        return 128 + error.number, error.name
    if isinstance(error, SystemExit):
        code = error.code
        return (code, "") if isinstance(code, int) else (int(code is not None), "")
    status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    return status, first_line(error)
