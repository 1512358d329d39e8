"""What ``run`` profiles, and what it shows of that."""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from pytorch_memlab.cli.module_globs import ImportedFunctions
from pytorch_memlab.cli.notices import tell_unused_gpu
from pytorch_memlab.cli.program import Program
from pytorch_memlab.cli.steps import Steps
from pytorch_memlab.cli.targets import (
    TOP_LEVEL,
    all_functions,
    lines_of_functions,
    named_functions,
    source_lines,
)
from pytorch_memlab.line_profiler.columns import DEFAULT_COLUMNS
from pytorch_memlab.line_profiler.definitions import Definition
from pytorch_memlab.line_profiler.line_profiler import LineProfiler
from pytorch_memlab.line_profiler.line_records import RecordsDisplay
from pytorch_memlab.line_profiler.profile import global_line_profiler, profile, take_over_printing
from pytorch_memlab.records import Report, Section


class HasSections(Protocol):
    """What has more to say of a run than the tables."""

    def sections(self) -> tuple[Section, ...]:
        """What it says, when the run ends."""


@contextmanager
def profile_in_builtins() -> Iterator[None]:
    """Let a bare ``@profile`` work, as under ``kernprof``; a program's own name goes before it."""
    if hasattr(builtins, "profile"):
        yield
        return
    builtins.profile = profile  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if getattr(builtins, "profile", None) is profile:
            del builtins.profile  # type: ignore[attr-defined]


class Profile:
    """The profile of one program: of functions named, functions decorated, or else all.

    Args:
        program: as ``__main__``, about to run.
        names: of functions, as ``named_functions`` takes them.
        columns: of the tables; None for those that the program's decorators ask for, or the
            default ones.
        device: the only one that is measured, None for every one in use.
        steps: the optimizer steps that are measured.
        others: what says more than the tables.

    Raises:
        UsageError: a name means nothing that can be profiled, or there is no such device.
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        columns: tuple[str, ...] | None,
        device: str | None,
        steps: Steps,
        others: Sequence[HasSections] = (),
    ) -> None:
        self._others = others
        self._columns = columns
        self._decorated: list[tuple[Any, tuple[str, ...]]] = []
        self._device = device
        self._steps = steps
        self._profiler = LineProfiler(target_gpu=device)
        self._process = os.getpid()
        self._program_showed_tables = False
        self._are_named = bool(names)
        named = named_functions(program, names)
        self._globs = named.globs
        self._imported = ImportedFunctions(named.globs, self._profiler)
        self._named = [getattr(target, "qual_name", target) for target in named.exact]
        chosen = named.functions if names else all_functions(program)
        for target in chosen:
            if isinstance(target, Definition):
                source = source_lines(program, target.code)
                folded = lines_of_functions(program) if target.qual_name == TOP_LEVEL else ()
                self._profiler.add_code(target.code, target.qual_name, source, folded)
            else:
                self._profiler.add_function(target)

    def start(self, process: ExitStack) -> None:
        """Notice whether the program shows tables of its own, and find functions in its modules.

        Args:
            process: gives back, when it closes, what this replaces.
        """
        for owner, name in (
            (LineProfiler, "print_stats"),
            (RecordsDisplay, "__repr__"),
            (RecordsDisplay, "_repr_html_"),
        ):
            shows = getattr(owner, name)
            process.callback(setattr, owner, name, shows)
            setattr(owner, name, self._noticed(shows))
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

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the program that runs within, in the steps that were asked for."""
        try:
            with self._steps.counted(self._begin, self._end):
                yield
        finally:
            # The tables of @profile are part of this report.
            self._decorated = take_over_printing()

    def _begin(self) -> None:
        self._profiler.enable()
        global_line_profiler.release()

    def _end(self) -> None:
        self._profiler.disable()
        global_line_profiler.disable()

    def finish(self, write: Callable[[Report], None], is_asked_for: bool) -> None:
        """End measuring, and show the tables; not in a process that the program forked.

        Args:
            write: shows a report.
            is_asked_for: show tables also where the program itself has shown its own.
        """
        self._profiler.disable()
        program_did = self._program_showed_tables and not self._are_named and not self._decorated
        if os.getpid() == self._process and (is_asked_for or not program_did):
            report = self._report()
            write(report)
            failed = not isinstance(sys.exc_info()[1], (SystemExit, type(None)))
            shows_memory = report.tables and not {"hits", "time"}.issuperset(report.columns)
            if shows_memory and not failed:
                tell_unused_gpu()

    def _report(self) -> Report:
        decorated = [function for function, _ in self._decorated]
        asked = dict.fromkeys(column for _, columns in self._decorated for column in columns)
        columns = self._columns or tuple(asked) or DEFAULT_COLUMNS
        reports = []
        if self._are_named or not decorated:
            reports.append(self._own_report(columns))
        if decorated:
            reports.append(global_line_profiler.display(decorated, columns).report)
        return Report(
            columns,
            tuple(table for report in reports for table in report.tables),
            tuple(dict.fromkeys(note for report in reports for note in report.notes)),
            tuple(section for other in self._others for section in other.sections()),
        )

    def _own_report(self, columns: tuple[str, ...]) -> Report:
        """The functions that were named, or all; of patterns, those that ran."""
        records = self._profiler.records()
        ran = records.functions_that_ran() if self._are_named else []
        chosen = [*self._named, *(name for name in ran if name not in self._named)]
        report = records.display(chosen or None, columns).report
        unmatched = [
            f"no function matched -f {glob.text} in the modules that the program imported"
            for glob in self._globs
            if not glob.has_matched
        ]
        return replace(report, notes=(*unmatched, *report.notes))

    def _noticed(self, shows: Any) -> Any:
        @functools.wraps(shows)
        def show(*args: Any, **kwargs: Any) -> Any:
            self._program_showed_tables = True
            return shows(*args, **kwargs)

        return show
