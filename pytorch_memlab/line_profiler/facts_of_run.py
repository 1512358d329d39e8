"""The records of a line profiler with facts of the run, as a file keeps them."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch

from .._common.process.ipython import ipython_shell
from .._common.process.ranks import this_rank
from .._common.process.version import __version__
from .._common.text.secrets_in_arguments import masked
from ..devices.device import Device, private_bytes
from ..profiles.merging import renumbered
from ..profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile, Run
from ..records import DeviceInfo, FunctionInfo, LineEntry, NoteKind, Remark, bound_of
from ..scopes import DevicePeaks
from .line_store import CodeLines

if TYPE_CHECKING:
    from types import CodeType

    from ..history.holders import PeakHolders
    from ..history.model import AllocationHistory
    from .line_store import LineStore


def notes_on_limits(history: AllocationHistory | None) -> list[Remark]:
    """Notes on the devices of a history that has not all events."""
    from ..history.model import device_name

    notes = []
    for device in () if history is None else history.devices:
        name, kept, dropped = device_name(device.device), len(device.events), device.dropped
        if dropped is None:
            notes.append(Remark(NoteKind.EVENTS_MAY_BE_MISSING, (name,), f"{kept:,}"))
        elif dropped:
            numbers = f"{kept:,} of {dropped + kept:,}"
            notes.append(Remark(NoteKind.EVENTS_DROPPED, (name,), numbers))
    return notes


class RunTime:
    """When profiling began, and how long it was on."""

    def __init__(self) -> None:
        self._started = ""
        self._seconds = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        """Profiling begins."""
        self._started = self._started or datetime.now(UTC).isoformat(timespec="seconds")
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
        own = this_rank()
        return Run(
            program,
            arguments,
            _versions(),
            self._started,
            round(self.seconds(), 3),
            is_dry_run,
            rank=own.rank,
            world_size=own.world_size,
            local_rank=own.local_rank,
            node=own.node,
            attempt=own.attempt,
            launcher=own.launcher,
        )


_PEAK_FIELDS = tuple(f"{kind}_bytes.all.peak" for kind in DevicePeaks._fields)


def measured_now(device: Device) -> MeasuredDevice:
    """The facts of a device, without peaks."""
    stats, nccl = device.stats(), device.nccl()
    return MeasuredDevice(
        device.info,
        device.capacity(),
        *(0, 0, 0),
        device.taken(),
        device.context(),
        retries=stats.get("num_alloc_retries", 0),
        private=private_bytes(stats),
        nccl=0 if nccl is None else nccl.estimate,
        nccl_at_least=0 if nccl is None else nccl.low,
        nccl_at_most=0 if nccl is None else nccl.high,
    )


def measured_devices(
    entries: Iterable[LineEntry],
    known_devices: Mapping[str, MeasuredDevice],  # by name; all but their peaks counts
    peaks: Mapping[str, PeakHolders],  # of the whole run, by device
) -> tuple[MeasuredDevice, ...]:
    """The devices of lines, with the highest of the peaks of the lines and of the whole run."""
    devices: dict[str, DeviceInfo] = {}
    readings: dict[str, dict[int, Mapping[str, int]]] = {}  # by identity: idle lines share theirs
    for entry in entries:
        name = entry.device.name
        if name not in devices:
            devices[name] = entry.device
            readings[name] = {}
        readings[name][id(entry.stats)] = entry.stats
    measured = []
    for name, device in devices.items():
        peak_active, peak_allocated, peak_reserved = (
            max([0, *(stats.get(field, 0) for stats in readings[name].values())])
            for field in _PEAK_FIELDS
        )
        measured.append(
            replace(
                known_devices.get(name, MeasuredDevice(device, 0, 0, 0, 0)),
                device=device,
                peak_active=peak_active,
                peak_allocated=peak_allocated,
                peak_reserved=peak_reserved,
            )
        )
    active = {name: DevicePeaks(holders.peak.active, 0, 0) for name, holders in peaks.items()}
    return with_run_peaks(measured, active)


def _raised(device: MeasuredDevice, peaks: DevicePeaks) -> MeasuredDevice:
    return replace(
        device,
        peak_active=max(device.peak_active, peaks.active),
        peak_allocated=max(device.peak_allocated, peaks.allocated),
        peak_reserved=max(device.peak_reserved, peaks.reserved),
    )


def with_run_peaks(
    devices: Iterable[MeasuredDevice], peaks: Mapping[str, DevicePeaks]
) -> tuple[MeasuredDevice, ...]:
    """Devices with the peaks of a whole run, where those are higher."""
    nothing = DevicePeaks(0, 0, 0)
    return tuple(_raised(device, peaks.get(device.device.name, nothing)) for device in devices)


def combined(parts: Sequence[RecordedProfile], columns: tuple[str, ...]) -> RecordedProfile:
    """The data of several profilers; a function of several counts as the first has it."""
    functions: list[FunctionInfo] = []
    entries: list[LineEntry] = []
    calls: list[RecordedCall] = []
    shown_functions: dict[int, None] = {}
    failures: dict[tuple[int, int], int] = {}
    for part in parts:
        first = len(functions)
        numbers = {function: place for place, function in enumerate(functions)}
        places = []
        for function in part.functions:
            places.append(numbers.get(function, len(functions)))
            if function not in numbers:
                functions.append(function)
        placed = renumbered(part, places)
        entries += [entry for entry in placed.entries if entry.code_id >= first]
        calls += [call for call in placed.calls if call.callee >= first]
        failures |= placed.failures
        shown_functions.update(dict.fromkeys(placed.shown or ()))
    telling = [part for part in parts if part.shown is None or part.shown]
    peaks = _highest(parts)
    return RecordedProfile(
        parts[0].runs,
        measured_devices(entries, _combined_devices(parts), peaks),
        tuple(functions),
        tuple(entries),
        tuple(calls),
        columns,
        None if parts[0].shown is None else tuple(shown_functions),
        tuple(dict.fromkeys(note for part in telling for note in part.notes)),
        tuple(dict.fromkeys(end for part in telling for end in part.ends)),
        peaks=peaks,
        failures=failures,
        history=next((part.history for part in parts if part.history is not None), None),
    )


def _combined_devices(parts: Iterable[RecordedProfile]) -> dict[str, MeasuredDevice]:
    """The devices of several profilers by their names, with what any of them did not count."""
    devices = [device for part in parts for device in part.devices]
    bounds = {device.device.name for device in devices if device.is_lower_bound}
    sizes: dict[str, set[str]] = {}
    for device in devices:
        sizes.setdefault(device.device.name, set()).add(device.assumed_sizes)
    return {
        device.device.name: replace(
            device,
            is_lower_bound=device.device.name in bounds,
            assumed_sizes=bound_of(sizes[device.device.name]),
            **{
                name: max(
                    getattr(other, name) for other in devices if other.device == device.device
                )
                for name in ("retries", "private", "nccl", "nccl_at_least", "nccl_at_most")
            },
        )
        for device in devices
    }


def _highest(parts: Iterable[RecordedProfile]) -> dict[str, PeakHolders]:
    """Of each device, the highest peak that one of the profilers recorded."""
    peaks: dict[str, PeakHolders] = {}
    for part in parts:
        for name, held in part.peaks.items():
            if name not in peaks or held.peak.active > peaks[name].peak.active:
                peaks[name] = held
    return peaks


def calls_between(
    store: LineStore, codes: Mapping[int, CodeType], index: Mapping[int, int]
) -> Iterator[RecordedCall]:
    """The calls of registered functions, from each place; indexes by the ids of codes."""
    lines: dict[int, CodeLines] = {}  # by the id of the calling code, which its sites keep alive
    for code_id, callee in index.items():
        for site in list(store.calls_of(code_id).values()):
            code = site.code
            if site.hits or site.added:
                caller = index.get(id(code)) if codes.get(id(code)) is code else None
                name = getattr(code, "co_qualname", code.co_name)
                if id(code) not in lines:
                    lines[id(code)] = CodeLines(code)
                where = (code.co_filename, name, lines[id(code)].at(site.offset))
                yield RecordedCall(callee, caller, *where, site.hits, site.added.copy())


def _command() -> tuple[str, tuple[str, ...]]:
    """The program and its arguments; a notebook's kernel is no program of the user."""
    if ipython_shell() is not None:
        return "", ()
    return (sys.argv[0], masked(sys.argv[1:])) if sys.argv else ("", ())


def _versions() -> dict[str, str]:
    versions = {
        "pytorch_memlab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {**versions, "cuda": torch.version.cuda} if torch.version.cuda else versions
