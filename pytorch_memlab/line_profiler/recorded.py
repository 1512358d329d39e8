"""The records of a line profiler with facts of the run, as a file keeps them."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import torch

from .._common.ipython import ipython_shell
from .._common.version import __version__
from ..profiles.recorded import Call, MeasuredDevice, RecordedProfile, Run
from ..records import FunctionInfo, LineEntry
from ..scopes import DevicePeaks
from .columns import DEFAULT_COLUMNS

if TYPE_CHECKING:
    from types import CodeType

    from ..devices import Device
    from ..history.holders import PeakHolders
    from .line_store import LineStore


_Capacity = tuple[int, int | None, int | None]
"""Bytes of a device, those that the program cannot have, and those of the context among them."""


class RunTime:
    """When profiling began, and how long it was on."""

    def __init__(self) -> None:
        self._started = ""
        self._seconds = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        """Profiling begins."""
        self._started = self._started or datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._since = time.perf_counter()

    def end(self) -> None:
        """Profiling ends."""
        self._seconds = self.seconds()
        self._since = None

    def seconds(self) -> float:
        """Seconds for which it was on so far."""
        return self._seconds + (0 if self._since is None else time.perf_counter() - self._since)

    def run(self, *, is_dry_run: bool) -> Run:
        """This run."""
        program, arguments = _command()
        return Run(
            program,
            arguments,
            _versions(),
            self._started,
            round(self.seconds(), 3),
            is_dry_run,
            rank=_number("RANK", 0),
            world_size=_number("WORLD_SIZE", 1),
        )


def recorded_profile(
    run: Run,
    codes: Mapping[int, CodeType],
    infos: Mapping[int, FunctionInfo],
    store: LineStore,
    devices: Iterable[Device],
) -> RecordedProfile:
    """The data of one profiler."""
    index = {code_id: place for place, code_id in enumerate(infos)}
    entries = tuple(
        replace(entry, code_id=index[entry.code_id]) for entry in store if entry.code_id in index
    )
    return RecordedProfile(
        (run,),
        measured_devices(
            entries,
            {one.info.name: (one.capacity(), one.taken(), one.context()) for one in devices},
        ),
        tuple(infos.values()),
        entries,
        tuple(_calls(store, codes, index)),
        DEFAULT_COLUMNS,
    )


def measured_devices(
    entries: Iterable[LineEntry], capacities: Mapping[str, _Capacity]
) -> tuple[MeasuredDevice, ...]:
    """The devices of lines, with the most that each held."""
    found: dict[str, MeasuredDevice] = {}
    for entry in entries:
        device = entry.device
        known = found.get(device.name)
        if known is None:
            capacity, taken, context = capacities.get(device.name, (0, None, None))
            known = MeasuredDevice(device, capacity, 0, 0, 0, taken, context)
        found[device.name] = replace(
            known,
            peak_active=max(known.peak_active, _peak(entry, "active")),
            peak_allocated=max(known.peak_allocated, _peak(entry, "allocated")),
            peak_reserved=max(known.peak_reserved, _peak(entry, "reserved")),
        )
    return tuple(found.values())


def with_peaks(
    devices: Iterable[MeasuredDevice], peaks: Mapping[str, PeakHolders]
) -> tuple[MeasuredDevice, ...]:
    """Devices with the peaks of the whole run, which may be outside of the recorded lines."""
    active = {name: DevicePeaks(holders.peak.active, 0, 0) for name, holders in peaks.items()}
    return with_run_peaks(devices, active)


def with_run_peaks(
    devices: Iterable[MeasuredDevice], peaks: Mapping[str, DevicePeaks]
) -> tuple[MeasuredDevice, ...]:
    """Devices with the peaks of a whole run, where those are higher."""
    return tuple(
        replace(
            one,
            peak_active=max(one.peak_active, peaks[one.device.name].active),
            peak_allocated=max(one.peak_allocated, peaks[one.device.name].allocated),
            peak_reserved=max(one.peak_reserved, peaks[one.device.name].reserved),
        )
        if one.device.name in peaks
        else one
        for one in devices
    )


def combined(parts: Sequence[RecordedProfile], columns: tuple[str, ...]) -> RecordedProfile:
    """The data of several profilers; a function of several counts as the first has it."""
    functions: list[FunctionInfo] = []
    entries: list[LineEntry] = []
    calls: list[Call] = []
    shown: dict[int, None] = {}
    failures: dict[tuple[int, int], int] = {}
    for part in parts:
        known = {one: place for place, one in enumerate(functions)}
        new = {number for number, one in enumerate(part.functions) if one not in known}
        place = []
        for number, one in enumerate(part.functions):
            place.append(len(functions) if number in new else known[one])
            if number in new:
                functions.append(one)
        entries += [
            replace(entry, code_id=place[entry.code_id])
            for entry in part.entries
            if entry.code_id in new
        ]
        calls += [
            replace(
                call,
                callee=place[call.callee],
                caller=None if call.caller is None else place[call.caller],
            )
            for call in part.calls
            if call.callee in new
        ]
        failures |= {(place[one], line): size for (one, line), size in part.failures.items()}
        chosen = range(len(part.functions)) if part.shown is None else part.shown
        shown.update(dict.fromkeys(place[number] for number in chosen))
    telling = [part for part in parts if part.shown is None or part.shown]
    capacities = {
        one.device.name: (one.capacity, one.taken, one.context)
        for part in parts
        for one in part.devices
    }
    return RecordedProfile(
        parts[0].runs,
        with_peaks(measured_devices(entries, capacities), _highest(parts)),
        tuple(functions),
        tuple(entries),
        tuple(calls),
        columns,
        None if parts[0].shown is None else tuple(shown),
        tuple(dict.fromkeys(note for part in telling for note in part.notes)),
        tuple(dict.fromkeys(end for part in telling for end in part.ends)),
        peaks=_highest(parts),
        failures=failures,
        history=next((part.history for part in parts if part.history is not None), None),
    )


def _highest(parts: Iterable[RecordedProfile]) -> dict[str, PeakHolders]:
    """Of each device, the highest peak that one of the profilers recorded."""
    peaks: dict[str, PeakHolders] = {}
    for part in parts:
        for name, held in part.peaks.items():
            if name not in peaks or held.peak.active > peaks[name].peak.active:
                peaks[name] = held
    return peaks


def _calls(
    store: LineStore, codes: Mapping[int, CodeType], index: Mapping[int, int]
) -> Iterable[Call]:
    """The calls of registered functions, those from one line added up."""
    lines: dict[tuple[int, int, int], Call] = {}
    for code_id, callee in index.items():
        for site in list(store.calls_of(code_id).values()):
            code, line = site.code, site.line
            if not site.hits and not site.delta:
                continue
            caller = index.get(id(code)) if codes.get(id(code)) is code else None
            name = getattr(code, "co_qualname", code.co_name)
            key = (callee, id(code), line)
            call = Call(callee, caller, code.co_filename, name, line, site.hits, site.delta.copy())
            known = lines.get(key)
            lines[key] = call if known is None else _sum(known, call)
    return lines.values()


def _sum(one: Call, other: Call) -> Call:
    names = {**one.delta, **other.delta}
    delta = {name: one.delta.get(name, 0) + other.delta.get(name, 0) for name in names}
    return replace(one, hits=one.hits + other.hits, delta=delta)


def _peak(entry: LineEntry, kind: str) -> int:
    return entry.stats.get(f"{kind}_bytes.all.peak", 0)


def _command() -> tuple[str, tuple[str, ...]]:
    """The program and its arguments; a notebook's kernel is no program of the user."""
    if ipython_shell() is not None:
        return "", ()
    return (sys.argv[0], tuple(sys.argv[1:])) if sys.argv else ("", ())


def _versions() -> dict[str, str]:
    versions = {
        "pytorch_memlab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {**versions, "cuda": torch.version.cuda} if torch.version.cuda else versions


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise
