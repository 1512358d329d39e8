"""Recorded lines, and their display in a terminal, a notebook, a program or a DataFrame."""

from __future__ import annotations

import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from io import TextIOBase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from .._common.frames.call_results import is_result_dropped
from .._common.process.checked_file import CheckedFile
from .._common.process.ipython import ipython_shell
from .._common.process.ranks import path_of_rank
from .._common.process.standard_output import without_encoding_errors
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import listed, quoted, shortened
from .._common.text.shared_paths import private_names
from ..columns import column_of, measured
from ..errors import UsageError
from ..profiles.ranking import peak_of
from ..records import (
    OF_VALUES,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    FunctionTable,
    LineEntry,
    Note,
    NoteKind,
    Remark,
    Report,
)
from ..render import text
from ..render.notes import kind_of
from ..render.tables import column_parts
from .columns import DEFAULT_COLUMNS, checked_columns

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd
    from pandas.api.extensions import ExtensionArray

    from ..profiles.recorded import RecordedProfile
    from .profile_difference import ProfileDifference

    Values = tuple[int | float | None, ...]

_IN_USE_FIELDS = ("active_bytes.all.peak", "allocated_bytes.all.peak")


class LineRecords:
    """The records of a profiler, line by line.

    Args:
        raw_line_records: one entry per function, line and device.
        code_infos: the registered functions by the id of their code object.
        notes: shown below the tables.
        ends: where the tracing of lines ended too early, shown first.
        failures: id of a code object and line at which a GPU ran out of memory -> bytes that the
            program asked for.
    """

    def __init__(
        self,
        raw_line_records: Iterable[LineEntry],
        code_infos: Mapping[int, FunctionInfo],
        notes: Sequence[Note] = (),
        ends: Sequence[Note] = (),
        failures: Mapping[tuple[int, int], int] = MappingProxyType({}),
    ) -> None:
        self._raw_line_records = raw_line_records
        self._code_infos = code_infos
        self.notes = tuple(notes)
        self.ends = tuple(ends)
        self._failures = failures

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.summary()}>"

    def __str__(self) -> str:
        return repr(self.display())

    def _repr_html_(self) -> str:
        return self.display()._repr_html_()

    def summary(self) -> str:
        """Functions, measured lines, and the highest peak, in a few words."""
        names = listed(info.qual_name for info in self._code_infos.values()) or "no function"
        entries = tuple(self._raw_line_records)
        lines = len({(entry.code_id, entry.line) for entry in entries})
        text = f"{names}: {counted(lines, 'line')} recorded"
        if not entries:
            return text
        highest = max(entries, key=peak_of)
        if not peak_of(highest) or highest.code_id not in self._code_infos:
            return text
        name = self._code_infos[highest.code_id].qual_name
        return f"{text}, peak {prose_size(peak_of(highest))} in {name}"

    def functions_that_ran(self) -> list[str]:
        """Qualified names of the functions of which any line was recorded."""
        ran = {entry.code_id for entry in self._raw_line_records}
        names = [info.qual_name for code_id, info in self._code_infos.items() if code_id in ran]
        return list(dict.fromkeys(names))

    def display(
        self, func: object = None, columns: str | Iterable[str] | None = DEFAULT_COLUMNS
    ) -> RecordsDisplay:
        """The tables as they are now.

        Args:
            func: as ``LineProfiler.display`` takes it.
            columns: as ``LineProfiler.display`` takes them.

        Returns:
            An object that shows itself as HTML in a notebook and as text elsewhere.

        Raises:
            UnknownColumnError: a column that nothing records.
            UsageError: a function that is not registered.
        """
        entries = tuple(self._raw_line_records)
        infos = dict(self._code_infos)
        names = checked_columns(columns, entries)
        chosen = {code_id: infos[code_id] for code_id in selected_code_ids(func, infos)}
        chosen_entries = [entry for entry in entries if entry.code_id in chosen]
        tables = _tables(chosen_entries, chosen, names, self._failures)
        notes: tuple[Note, ...] = (*self.ends, *self.notes)
        if func is not None:
            kinds = {
                None,
                *(
                    approximation.kind
                    for entry in chosen_entries
                    for approximation in entry.approximations
                ),
            }
            notes = tuple(note for note in notes if kind_of(note) in kinds)
        idle = {entry.device for entry in chosen_entries} - {table.device for table in tables}
        if idle:
            in_order = sorted(idle, key=_device_order)
            notes = (
                *notes,
                Remark(NoteKind.IDLE_DEVICES, tuple(device.name for device in in_order)),
            )
        if {"kept", "freed"}.intersection(names):
            unsure = {entry.device for entry in chosen_entries if _may_keep_more(entry)}
            if unsure:
                in_order = sorted(unsure, key=_device_order)
                kind = NoteKind.KEPT_AT_LEAST
                notes = (*notes, Remark(kind, tuple(device.name for device in in_order)))
        ran = {entry.code_id for entry in chosen_entries}
        missing = [info.qual_name for code_id, info in chosen.items() if code_id not in ran]
        if missing and (func is not None or not tables):
            kind = NoteKind.DID_NOT_RUN_BEFORE_END if self.ends else NoteKind.DID_NOT_RUN
            notes = (Remark(kind, tuple(missing)), *notes)
        elif not infos:
            notes = (Remark(NoteKind.NO_FUNCTIONS), *notes)
        return RecordsDisplay(Report(names, tables, notes))

    def to_dataframe(self) -> pd.DataFrame:
        """One row per device, function and line, sizes in bytes and time in seconds.

        Returns:
            Columns ``device, function, file, line, code, hits, time, kept, freed, delta``, then
            every statistic under its dotted name, such as ``active_bytes.all.peak``. Where a
            simulation did not know all of it, ``unmodelled`` (bytes), ``uncounted`` (calls),
            ``estimated`` (bytes) and ``assumed`` (values and sizes, in reads) at the end.
        """
        entries = tuple(self._raw_line_records)
        order = {code_id: place for place, code_id in enumerate(dict(self._code_infos))}
        return tidy_frame(
            sorted(
                entries,
                key=lambda entry: (_device_order(entry.device), order[entry.code_id], entry.line),
            ),
            self._code_infos,
        )


class RecordsDisplay:
    """Tables that show themselves: HTML in a notebook, text elsewhere.

    Args:
        report: the tables' data.
    """

    def __init__(self, report: Report) -> None:
        self.report = report

    @cached_property
    def _line_records(self) -> pd.DataFrame:
        """Raw numbers by qualified name and line: public code reads this frame."""
        return line_frame(self.report)

    def __repr__(self) -> str:
        return text.render(self.report).removesuffix("\n")

    def _repr_html_(self) -> str:
        from ..render import html

        return html.fragment(self.report)


class RecordedLines(ABC):
    """Lines that display, print and save themselves: a profiler's, or those of a file."""

    @abstractmethod
    def recorded(self) -> RecordedProfile:
        """Everything recorded so far and what is known of the run, as ``save`` writes it."""

    @abstractmethod
    def _display(self, func: Any, columns: str | Iterable[str] | None) -> RecordsDisplay: ...

    def display(
        self, func: Any = None, columns: str | Iterable[str] | None = None
    ) -> RecordsDisplay:
        """The recorded lines: a table with bars in a notebook, text elsewhere.

        It is shown at once where nothing gets the result, as in a script.

        Args:
            func: a function, its qualified name, or several; None for all, of a saved profile for
                those that the run showed.
            columns: fields of ``torch.cuda.memory_stats()`` such as ``allocated_bytes.all.peak``,
                its short names ``peak`` (active bytes), ``reserved`` (its peak) and ``current``
                (active bytes), or ``hits``, ``kept`` (bytes that a hit
                allocated and did not free), ``freed`` (bytes from before that it freed), ``delta``
                (the first less the second; the mean of a hit, as these), ``temporary``
                (bytes in use beyond those of the start and the end), ``time`` (seconds). A
                statistic over several hits is the maximum; of what is allocated, freed and counted
                (``num_ooms``), that of a single hit. None for ``DEFAULT_COLUMNS``, of a saved
                profile for those that the run showed.

        Returns:
            an object that renders itself.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not registered.
        """
        result = self._display(func, columns)
        if is_result_dropped(sys._getframe(1)):
            show(result)
        return result

    def print_stats(
        self,
        func: Any = None,
        columns: str | Iterable[str] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """Print what was recorded.

        Args:
            func: as ``display`` takes it.
            columns: as ``display`` takes them.
            stream: where to; the ``sys.stdout`` of this moment if None.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not registered.
        """
        if isinstance(func, TextIOBase):
            raise UsageError("print_stats takes a stream as print_stats(stream=...)")
        stream = sys.stdout if stream is None else stream
        write(self._display(func, columns), stream)

    def report_of_each_device(
        self, func: Any = None, columns: str | Iterable[str] | None = None
    ) -> Report:
        """The tables as data, in a merged profile one for each function and device."""
        return self._display(func, columns).report

    def diff(self, other: RecordedLines) -> ProfileDifference:
        """The differences from these lines to those of another profile, a later one.

        Args:
            other: a ``LineProfiler``, or a profile that ``load`` read.

        Returns:
            an object that a notebook shows as tables and ``print`` as text; ``to_dataframe()``
            has the lines.

        Raises:
            UsageError: it is something else.
        """
        from .profile_difference import ProfileDifference

        if not isinstance(other, RecordedLines):
            raise UsageError(f"diff takes a profiler or a loaded profile, not {quoted(other)}")
        return ProfileDifference(self.recorded(), other.recorded())

    def save(
        self, path: str | PathLike[str], *, force: bool = False, private: bool = False
    ) -> None:
        """Write everything recorded so far to a file, which ``load`` reads.

        The command line reads it too: ``pytorch-memlab show FILE``, ``top``, ``diff`` and others.

        Args:
            path: of the file, such as ``train.memlab.json``. ``{rank}`` and ``{pid}`` are filled
                in.
            force: write it also where there is such a file already.
            private: leave out the program's arguments, the message of its error, and the folders
                of its files, as ``pytorch-memlab run --private`` does.

        Raises:
            UsageError: there is one, or it cannot be written; the older one is as it was.
        """
        from ..profiles.privacy import without_private_facts
        from ..render.notes import in_words
        from ..saved import profile_file

        file = CheckedFile(path_of_rank(os.fspath(path)), keeps_older=not force)
        recorded = self.recorded()
        with private_names(private):
            recorded = without_private_facts(recorded) if private else recorded
            file.write(profile_file.text_of(in_words(recorded)))

    def to_html(self, path: str | PathLike[str], *, private: bool = False) -> None:
        """Write everything recorded so far to a page, which a browser shows without a network.

        The page has the lines with the memory that each kept, what held the memory at the peak,
        and, with ``history=True``, the memory over time. A page that is there is overwritten.

        Args:
            path: of the file, such as ``report.html``. ``{rank}`` and ``{pid}`` are filled in.
            private: leave out the program's arguments, the message of its error, and the folders
                of its files.

        Raises:
            UsageError: it cannot be written; an older page is as it was.
        """
        from ..profiles.privacy import private_report, without_private_facts
        from ..render import report_page

        file = CheckedFile(path_of_rank(os.fspath(path)))
        recorded, report = self.recorded(), self.report_of_each_device()
        if private:
            recorded, report = without_private_facts(recorded), private_report(report)
        with private_names(private):
            file.write(report_page.render(recorded, report))

    def __str__(self) -> str:
        """The tables, as ``print_stats`` prints them."""
        return repr(self._display(None, None))

    def _repr_html_(self) -> str:
        """The tables of all functions: a notebook shows them for an object that ends a cell."""
        return self._display(None, None)._repr_html_()


def _tables(
    entries: Iterable[LineEntry],
    infos: Mapping[int, FunctionInfo],
    columns: Sequence[str],
    failures: Mapping[tuple[int, int], int],
) -> tuple[FunctionTable, ...]:
    """A table for each function and device on which memory was in use, or its first device."""
    lines: dict[int, dict[DeviceInfo, list[LineEntry]]] = {code_id: {} for code_id in infos}
    for entry in sorted(entries, key=lambda entry: entry.line):
        lines[entry.code_id].setdefault(entry.device, []).append(entry)
    tables = []
    values = [column_of(name).value for name in columns]
    for code_id, info in infos.items():
        of_devices = list(lines[code_id].items())
        if len(of_devices) > 1:
            of_devices.sort(key=lambda item: _device_order(item[0]))
        failed = {line: size for (code, line), size in failures.items() if code == code_id}
        in_use = [
            (device, device_entries)
            for device, device_entries in of_devices
            if _is_in_use(device_entries)
        ]
        for device, device_entries in in_use or of_devices[:1]:
            rows = {
                entry.line: tuple([value(entry) for value in values]) for entry in device_entries
            }
            approximations = {
                entry.line: entry.approximations for entry in device_entries if entry.approximations
            }
            tables.append(FunctionTable(info, device, rows, approximations, failed))
    return tuple(tables)


def _may_keep_more(entry: LineEntry) -> bool:
    """True if hardware counted bytes both allocated and freed, which may be others than counted."""
    stats = entry.stats
    return (
        not entry.device.simulated
        and stats.get("allocated_bytes.all.allocated", 0) > entry.kept
        and stats.get("allocated_bytes.all.freed", 0) > entry.freed
    )


def _is_in_use(entries: Iterable[LineEntry]) -> bool:
    """True if a device holds more than memory that the allocator keeps for later."""
    return any(
        entry.kept or entry.freed or any(entry.stats.get(field) for field in _IN_USE_FIELDS)
        for entry in entries
    )


def _device_order(device: DeviceInfo) -> tuple[str, int, str]:
    """Sorts ``cuda:2`` before ``cuda:10``."""
    kind, _, index = device.name.partition(":")
    return kind, int(index) if re.fullmatch("[0-9]+", index) else -1, device.name


def selected_code_ids(func: object, code_infos: Mapping[int, FunctionInfo]) -> tuple[int, ...]:
    """The functions asked for, as ``display`` takes them, as they were registered."""
    if func is None:
        return tuple(code_infos)
    asked = func if isinstance(func, (list, tuple, set, frozenset)) else [func]
    named: dict[str, list[int]] = {}
    for code_id, info in code_infos.items():
        named.setdefault(info.qual_name, []).append(code_id)
    chosen = {code_id for item in asked for code_id in _matching(item, code_infos, named)}
    return tuple(code_id for code_id in code_infos if code_id in chosen)


def _matching(
    item: object, code_infos: Mapping[int, FunctionInfo], named: Mapping[str, list[int]]
) -> list[int]:
    if isinstance(item, str):
        chosen = named.get(item, [])
        wanted = shortened(item)
    else:
        from .registration import resolve

        functions = resolve(item)
        code_ids = [id(function.__code__) for function in functions]
        chosen = [code_id for code_id in code_ids if code_id in code_infos]
        wanted = listed(function.__qualname__ for function in functions) or quoted(item)
    if chosen:
        return chosen
    registered = listed(info.qual_name for info in code_infos.values()) or "none"
    raise UsageError(f"{wanted} is not registered with this profiler; registered: {registered}")


def show(display: RecordsDisplay) -> None:
    """Show tables now: in IPython as the result of a cell, elsewhere on ``sys.stdout``."""
    if ipython_shell() is not None:
        from IPython.display import display as show_in_cell

        show_in_cell(display)
    else:
        write(display, sys.stdout)


def write(display: RecordsDisplay, stream: TextIO | None) -> None:
    """Write tables as text, with colours in a terminal."""
    if stream is None:  # ``sys.stdout`` where it was closed
        return
    with without_encoding_errors(stream):
        if stream.isatty():
            text.write(display.report, stream)
        else:
            stream.write(f"{display}\n")


# In DataFrames


def tidy_frame(
    entries: Sequence[LineEntry], code_infos: Mapping[int, FunctionInfo]
) -> pd.DataFrame:
    """One row per device, function and line; see ``LineRecords.to_dataframe``."""
    import pandas as pd

    infos = [code_infos[entry.code_id] for entry in entries]
    frame = pd.DataFrame(
        {
            "device": [entry.device.name for entry in entries],
            "function": [info.qual_name for info in infos],
            "file": [info.filename for info in infos],
            "line": [entry.line for entry in entries],
            "code": [info.text_of(entry.line) for info, entry in zip(infos, entries, strict=True)],
            "hits": [entry.hits for entry in entries],
            "time": [entry.time for entry in entries],
            **{
                name: [getattr(entry, name) for entry in entries]
                for name in ("kept", "freed", "delta")
            },
        }
    )
    names = dict.fromkeys(name for entry in entries for name in entry.stats)
    statistics = pd.DataFrame(
        {name: _int_array([*map(measured(name), entries)]) for name in names},
        index=frame.index,
    )
    unknown = pd.DataFrame(_approximation_columns(entries), index=frame.index)
    return pd.concat([frame, statistics, unknown], axis=1)


def _approximation_columns(entries: Sequence[LineEntry]) -> dict[str, list[int]]:
    if not any(entry.approximations for entry in entries):
        return {}
    columns = {
        **{kind.value: frozenset({kind}) for kind in ApproximationKind if kind not in OF_VALUES},
        ApproximationKind.ASSUMED.value: OF_VALUES,
    }
    return {
        name: [
            sum(
                approximation.calls if name in _IN_CALLS else approximation.nbytes
                for approximation in entry.approximations
                if approximation.kind in kinds
            )
            for entry in entries
        ]
        for name, kinds in columns.items()
    }


_IN_CALLS = (ApproximationKind.ASSUMED.value, ApproximationKind.UNCOUNTED.value)


def line_frame(report: Report) -> pd.DataFrame:
    """The numbers of a report by ``(qual_name, line)``, the maxima of functions and devices."""
    import pandas as pd

    rows: dict[tuple[str, int], Values] = {}
    for table in report.tables:
        for line, values in table.rows.items():
            key = (table.function.qual_name, line)
            rows[key] = _maxima(rows[key], values) if key in rows else values
    keys = sorted(rows)
    index = pd.MultiIndex.from_arrays(
        [[name for name, _ in keys], [line for _, line in keys]], names=["qual_name", "line"]
    )
    columns = pd.MultiIndex.from_tuples([column_parts(column) for column in report.columns])
    # With NaN in place of None a column stays numeric, and one without gaps an int column.
    data = [[math.nan if value is None else value for value in rows[key]] for key in keys]
    return pd.DataFrame(data, index=index, columns=columns)


def _int_array(values: Sequence[int | None]) -> ExtensionArray:
    import pandas as pd

    return pd.array(values, dtype="Int64" if None in values else "int64")


def _maxima(values: Values, other: Values) -> Values:
    return tuple(
        max((value for value in pair if value is not None), default=None)
        for pair in zip(values, other, strict=True)
    )
