"""A recording, and replays of it with other settings or on other GPUs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..simulation.allocator import out_of_memory as simulated
from ..simulation.allocator.driver import DriverCalls
from ..simulation.allocator.replay import Comparison, Mismatch, RefusedRequest, Replay
from ..simulation.inspect import GPU, MemoryOverhead
from .first_state import first_state, trace_of
from .model import AllocationHistory, DeviceHistory, EventLog, Stack, device_name
from .out_of_memory import SettingsCheck
from .peak import counters_of
from .replay import (
    Figures,
    ReplayResult,
    changed_settings,
    figures_of,
    release_runs,
    replay,
)
from .settings import settings_of

_MOST_DIFFERENCES: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """A recording replayed as it was recorded, event by event."""

    figures: Figures | None  # of the replay; None if it was ended by too many differences
    allocations: int  # how many were compared by their addresses
    segments: int
    differences: int
    first: Mismatch | None
    ends_alike: bool
    # which of several free blocks of one size is taken, as ``CachingAllocator`` says: the rule
    # that reproduces the recording best
    order_by_address: bool

    @property
    def matches(self) -> bool:
        return not self.differences and self.ends_alike


def check_replay(history: AllocationHistory, device: int = 0) -> ReplayCheck:
    """Replay a recording on the recorded segments, and compare every address."""
    one, settings = history.of_device(device), settings_of(history.settings)
    trace = trace_of(one, settings)
    begun = {}
    for order_by_address in (False, True):
        done = Comparison(trace, settings, order_by_address, most_mismatches=1).run()
        if not done.mismatches:
            return _check(done, one, order_by_address)
        begun[order_by_address] = done.mismatches[0].index
    best = begun[True] > begun[False]
    return _check(Comparison(trace, settings, best, _MOST_DIFFERENCES).run(), one, best)


def _check(done: Replay, device: DeviceHistory, order_by_address: bool) -> ReplayCheck:
    return ReplayCheck(
        Figures(**figures_of(done), retries=None) if done.stats else None,
        done.allocations,
        done.segments_checked,
        len({one.index for one in done.mismatches}),
        done.mismatches[0] if done.mismatches else None,
        done.final_matches or device.initial is not None,
        order_by_address,
    )


def recorded_figures(history: AllocationHistory, device: int = 0) -> Figures:
    one = history.of_device(device)
    active, reserved = counters_of(one, settings_of(history.settings))
    log, peak = one.events, max(reserved)
    failures = []
    for at in log.indexes("oom"):
        figures = log.sizes[at], active[at + 1], reserved[at + 1], log.addresses[at]
        failures.append(RefusedRequest(at, "", *figures, True))
    return Figures(
        peak_active=max(active),
        peak_reserved=peak,
        unused_at_peak=min(
            all_ - used for all_, used in zip(reserved, active, strict=True) if all_ == peak
        ),
        calls=DriverCalls(*(len(log.indexes(name)) for name in _CALLS)),
        retries=recorded_retries(history, device, failures),
        failures=tuple(failures),
    )


def recorded_retries(
    history: AllocationHistory, device: int, failures: Sequence[RefusedRequest]
) -> int:
    """The number of times that cached memory went back to the GPU for a request."""
    one, settings = history.of_device(device), settings_of(history.settings)
    runs = release_runs(one.events, first_state(one, settings).segments, settings)
    ends = {run.last for run in runs if run.is_of_request}
    return len(ends) + sum(failure.index - 1 not in ends for failure in failures)


_CALLS: Final = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


@dataclass(frozen=True, slots=True)
class Variant:
    """A recording replayed in another way."""

    name: str  # of the GPU, as the user wrote it; empty for that of the recording
    gpu: GPU | None  # the GPU; None for that of the recording
    result: ReplayResult


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recording, the check that it can be replayed, and its variants."""

    device: int  # index of the GPU
    events: EventLog
    stacks: Sequence[Stack]
    earlier: int  # bytes of the segments from before the first event
    recorded: Figures
    check: ReplayCheck
    settings: str
    variants: tuple[Variant, ...]
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run

    @property
    def name(self) -> str:
        return f"{self.run} {device_name(self.device)}".lstrip()


def what_if(
    history: AllocationHistory,
    device: int = 0,
    settings: str = "",
    gpus: Sequence[tuple[str, GPU]] = (),
) -> WhatIf:
    one, found = history.of_device(device), settings_of(history.settings)
    changed = changed_settings(found, settings)
    check = check_replay(history, device)
    order, recorded = check.order_by_address, check.figures
    if recorded is None or not check.matches:
        recorded = recorded_figures(history, device)
    else:
        retries = recorded_retries(history, device, recorded.failures)
        recorded = replace(recorded, retries=retries)
    cases: list[tuple[str, GPU | None, int | None, int]] = [
        (name, gpu, gpu.total_memory, MemoryOverhead.of(gpu, None, 0).context) for name, gpu in gpus
    ]
    if settings and not gpus:
        failed = recorded.out_of_memory
        cases = [("", None, None if failed is None else failed.reserved + failed.free, 0)]
    variants = [
        Variant(
            name, gpu, replay(history, device, changed, capacity, taken, order_by_address=order)
        )
        for name, gpu, capacity, taken in cases
    ]
    return WhatIf(
        device,
        one.events,
        history.stacks,
        sum(segment.size for segment in first_state(one, found).segments),
        recorded,
        check,
        settings,
        tuple(variants),
    )


LONGEST: Final = 300_000
"""Numbers of a log that are made again: more take too long for a report."""


def check_settings(
    request: simulated.FailedRequest,
    requests: array[int],
    length: int,
    settings: str,
    *,
    one_stream: bool = False,
    is_whole: bool = True,
) -> SettingsCheck:
    """Make the recorded requests again, and the one that failed after them."""
    log, numbers = EventLog(), iter(requests[:length])
    for number in numbers:
        if number > 0:
            size, stream = next(numbers), next(numbers)
            log.append("alloc", number, size, 0 if one_stream else stream, 0, 0)
        else:
            log.append("free_completed", -number, 0, 0, 0, 0)
    stream = 0 if one_stream else request.stream
    log.append("oom", request.free, request.requested, stream, 0, 0)
    history = AllocationHistory((DeviceHistory(request.device, log, (), ()),), ((),))
    taken = (request.context or 0) + (request.others or 0)
    if request.allowed is not None:
        taken = max(taken, request.capacity - request.allowed)
    result = replay(history, settings=settings, capacity=request.capacity, taken=taken)
    made = len(log.indexes("alloc"))
    return SettingsCheck(settings, made, result.out_of_memory is None, is_whole)
