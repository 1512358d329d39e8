"""Recorded lines as data, and the tables made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import listed, quoted, shortened
from ..columns import column_of
from ..errors import UsageError
from ..profiles.ranking import peak_of
from ..records import (
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
from .columns import DEFAULT_COLUMNS, checked_columns
from .line_frames import line_frame, tidy_frame

if TYPE_CHECKING:
    import pandas as pd


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
        notes = [*self.ends, *self.notes]
        if func is not None:
            notes = _notes_on(chosen_entries, notes)
        idle = {entry.device for entry in chosen_entries} - {table.device for table in tables}
        notes += _remark_on(NoteKind.IDLE_DEVICES, idle)
        if {"kept", "freed"}.intersection(names):
            unsure = {entry.device for entry in chosen_entries if _may_keep_more(entry)}
            notes += _remark_on(NoteKind.KEPT_AT_LEAST, unsure)
        ran = {entry.code_id for entry in chosen_entries}
        missing = [info.qual_name for code_id, info in chosen.items() if code_id not in ran]
        if missing and (func is not None or not tables):
            kind = NoteKind.DID_NOT_RUN_BEFORE_END if self.ends else NoteKind.DID_NOT_RUN
            notes.insert(0, Remark(kind, tuple(missing)))
        elif not infos:
            notes.insert(0, Remark(NoteKind.NO_FUNCTIONS))
        return RecordsDisplay(Report(names, tables, tuple(notes)))

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


def _notes_on(entries: Iterable[LineEntry], notes: Iterable[Note]) -> list[Note]:
    """The notes that tell something of some entries."""
    approximations = (part for entry in entries for part in entry.approximations)
    kinds = {None, *(approximation.kind for approximation in approximations)}
    return [note for note in notes if kind_of(note) in kinds]


def _remark_on(kind: NoteKind, devices: Iterable[DeviceInfo]) -> list[Note]:
    """A remark on some devices; none without them."""
    names = tuple(device.name for device in sorted(devices, key=_device_order))
    return [Remark(kind, names)] if names else []


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
