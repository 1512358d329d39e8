"""Runs source in the shell's namespace for ``%mlrun``, and profiles functions of it.

See Note [Names of functions that do not exist yet].

Note [Names that a statement brings]

``-f`` may name what neither the source defines nor the namespace has, such as ``work`` for
``from package import work`` in the cell. It may exist after any statement of the cell, and its
lines are to be measured from its first call on. So the cell then runs statement by statement, and
after each the names that are still open are looked up. Otherwise the cell is one piece of code, as
IPython has it.

Note [Cache of earlier cells]

What earlier cells freed is in the allocator's cache when a cell begins, and so part of what it
finds reserved. The allocator gives it back to a request that finds no other memory, so it takes
nothing from the cell: as much of it as lay unused at the cell's peak does not count as reserved in
the verdict, and a note says how much. ``--empty-cache`` gives it back before the cell runs, as
version 0.3 did. Otherwise nothing is emptied, so that the program's own counters stay.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from collections.abc import Iterable
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Any

from .._common.process.checked_file import CheckedFile
from .._common.process.uncaught_errors import first_line
from .._common.text.shared_paths import private_names
from ..devices.allocations import caches, empty_caches
from ..errors import MemlabError, UsageError
from ..line_profiler.facts_of_run import with_run_peaks
from ..line_profiler.line_profiler import LineProfiler
from ..line_profiler.line_records import RecordsDisplay
from ..line_profiler.source_functions import SourceFunctions, nearest
from ..profiles.device_verdicts import verdicts
from ..profiles.privacy import private_report, without_private_facts
from ..profiles.recorded import MeasuredDevice, RecordedProfile
from ..records import Report
from ..render.output_format import RunResults
from ..render.outputs import output_formats
from ..render.run_notes import cache_notes, sentences
from ..scopes import RunPeaks
from .shell import last_cell_number

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

_CELL = "<cell>"
"""The name of a cell's code outside functions, in reports."""


class CellSyntaxError(MemlabError):
    """The source is no Python; ``__cause__`` is Python's own ``SyntaxError``."""

    def __init__(self, shell: InteractiveShell, error: SyntaxError) -> None:
        super().__init__(str(error))
        self._shell = shell
        self.__cause__ = error

    def _render_traceback_(self) -> list[str]:
        """The line and the place in it, as IPython shows them for a cell without a magic."""
        printer: Any = self._shell.SyntaxTB
        lines: list[str] = printer.structured_traceback(SyntaxError, self.__cause__, [])
        return lines


def _compiled(source: str | ast.Module, name: str, cells: int) -> CodeType:
    """Code under the ``__future__`` statements of the user's cells, not of this module."""
    flags = cells & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(source, name, "exec", flags, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        raise UsageError(
            "%mlrun cannot await: decorate the function with @profile, await it in another "
            "cell, and call pytorch_memlab.display() in the next"
        )
    return code


class CellRun:
    """Runs source in a shell's namespace, and profiles functions that are named, or all of it."""

    def __init__(
        self,
        shell: InteractiveShell,
        names: Iterable[str],
        target_gpu: str | None,
        *,
        keeps_history: bool = False,
        empties_cache: bool = False,
    ) -> None:
        self._shell = shell
        self._empties_cache = empties_cache
        self._cache: dict[str, int] = {}
        self._asked = list(dict.fromkeys(names))
        self._found: set[str] = set()
        self._own: list[str] = []
        self.profiler = LineProfiler(target_gpu=target_gpu, history=keeps_history)
        self._peaks = RunPeaks(target_gpu)
        self._exception = ""

    def run(self, source: str, local_ns: dict[str, Any] | None) -> None:
        """Run source as the user typed it, with the names of the function that called the magic."""
        # Raises UsageError for a function to profile that was nowhere, after all of the source has
        # run; or, before any of it runs, for source that awaits at its top level. Raises
        # CellSyntaxError for source that is no Python.
        __tracebackhide__ = True  # IPython leaves this frame out of a failing cell's traceback
        shell = self._shell
        python = shell.transform_cell(source)
        number = last_cell_number(shell)
        name = shell.compile.cache(python, number, raw_code=source)
        try:
            whole = _compiled(python, name, shell.compile.flags)
        except SyntaxError as error:
            raise CellSyntaxError(shell, error) from error
        namespace = shell.user_ns if local_ns is None else local_ns
        own = SourceFunctions(whole, python, _CELL)
        self._own = own.names
        self._found = {asked for asked in self._asked if own.named(asked)}
        functions = self._objects(namespace)
        # See Note [Names that a statement brings].
        parts = self._statements(python, name) if self._missing() else [whole]
        for part in parts:
            self._add_own(SourceFunctions(part, python, _CELL))
        for function in functions:
            self.profiler.add_function(function)
        if self._empties_cache:
            empty_caches()
        self._cache = caches()
        self._peaks.begin()
        try:
            with self.profiler:
                for part in parts:
                    exec(part, shell.user_global_ns, namespace)  # noqa: S102 - what a magic is for
                    for function in self._objects(namespace):
                        self.profiler.add_function(function)
        except BaseException as error:
            self._exception = first_line(error)
            raise
        finally:
            self._peaks.end()
        self._refuse_missing()

    def _statements(self, python: str, name: str) -> list[CodeType]:
        """The code of each statement of the source by itself."""
        tree, flags = ast.parse(python, name), self._shell.compile.flags
        modules = [ast.Module([statement], tree.type_ignores) for statement in tree.body]
        return [_compiled(module, name, flags) for module in modules]

    def _refuse_missing(self) -> None:
        """Refuse names of functions that nothing had, with the names that are near."""
        missing = self._missing()
        if not missing:
            return
        names = self._own or [
            name
            for name, value in self._shell.user_ns.items()
            if inspect.isfunction(value) and value.__module__ == "__main__"
        ]
        near = ", ".join(dict.fromkeys(nearest(missing[0], names)))
        hint = f": there is {near}" if near else ""
        raise UsageError(f"no function {', '.join(missing)} to profile{hint}")

    def recorded(self) -> RecordedProfile:
        profile = self.profiler.recorded()
        return replace(
            profile,
            runs=tuple(replace(run, exception=self._exception) for run in profile.runs),
            devices=with_run_peaks(profile.devices, self._peaks.highest),
        )

    def tables(self, columns: tuple[str, ...]) -> Report:
        return self.profiler.records().display(None, columns).report

    def display(self, columns: tuple[str, ...]) -> RecordsDisplay:
        """The tables, and whether the memory of each simulated GPU was enough."""
        # See Note [Cache of earlier cells].
        tables = self.tables(columns)
        if not tables.tables:
            return RecordsDisplay(tables)
        recorded = self.recorded()
        unused = {device.device.name: self._unused_cache(device) for device in recorded.devices}
        own = [
            replace(device, peak_reserved=device.peak_reserved - unused[device.device.name])
            for device in recorded.devices
        ]
        device_verdicts = verdicts(replace(recorded, devices=tuple(own)))
        simulated = [verdict for verdict in device_verdicts if verdict.measured.device.simulated]
        notes = (*sentences(simulated), *cache_notes(unused), *tables.notes)
        return RecordsDisplay(replace(tables, notes=notes))

    def _unused_cache(self, device: MeasuredDevice) -> int:
        """Bytes that were cached before the cell, and that it did not need at its peak."""
        cached = self._cache.get(device.device.name, 0)
        return min(cached, max(device.peak_reserved - device.peak_active, 0))

    def _add_own(self, source: SourceFunctions) -> None:
        """Profile functions that the source will define."""
        named = {id(definition.code) for asked in self._asked for definition in source.named(asked)}
        chosen = [
            definition
            for definition in source.defined
            if not self._asked or id(definition.code) in named
        ]
        if not self._asked and not chosen:
            chosen = [source.top_level]
        for definition in chosen:
            source.add_to(self.profiler, definition)

    def _objects(self, namespace: dict[str, Any]) -> list[object]:
        """The objects that names mean by now, of those not found before."""
        objects = []
        for name in self._missing():
            try:
                objects.append(eval(name, self._shell.user_global_ns, namespace))  # noqa: S307
            except (NameError, AttributeError):
                continue
            except SyntaxError:
                raise UsageError(f"-f takes the name of a function, not {name!r}") from None
            self._found.add(name)
        return objects

    def _missing(self) -> list[str]:
        return [name for name in self._asked if name not in self._found]


class MlrunFile:
    """A page, a profile or text, as the name asks; a cell that runs again overwrites it."""

    def __init__(self, path: str, *, is_quiet: bool, is_private: bool) -> None:
        self._path = path
        self._file = CheckedFile(path)
        self._is_quiet = is_quiet
        self._is_private = is_private

    @property
    def is_page(self) -> bool:
        return self._file.ending == ".html"

    def write(self, run: CellRun, columns: tuple[str, ...]) -> None:
        """Write it, or say on standard error why it cannot be written."""
        name = self._file.write_or_tell(lambda: self._text(run, columns))
        if name is not None and self.is_page and not self._is_quiet:
            from IPython.display import FileLink, display

            display(FileLink(self._path))

    def _text(self, run: CellRun, columns: tuple[str, ...]) -> str | bytes:
        profile, tables = replace(run.recorded(), columns=columns), run.tables(columns)
        report = run.display(columns).report
        if self._is_private:
            profile = without_private_facts(profile)
            tables, report = private_report(tables), private_report(report)
        formats = output_formats(RunResults)
        output = formats.get(self._file.ending, formats[".txt"])
        with private_names(self._is_private):
            return output.render(RunResults(report, None, profile, profile, tables))
