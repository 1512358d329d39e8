"""A recorded history once more: its requests to an allocator of other settings or another GPU.

Note [What is replayed]
The requests and frees of a program are replayed, and each time that it emptied the cache. The
decisions of the allocator are not: it chooses its blocks and segments again, and what it gives
back before it fails.

Segments that go back to the GPU right before a request gets memory may be either the program's
``empty_cache()`` or the allocator's last try. The latter runs on the stack of the request, and only
when the GPU has no room for what is asked; so what the recording held at another moment was no
reason for it.

Note [Frees that wait]
A block that another stream uses stays in use after it is freed, until that stream is done. Such a
block is given back where the recording completed its free, or earlier, when the allocator waits
for all streams because it runs out of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, Final, NamedTuple

from ..simulation.allocator.driver import DriverCalls, SimulatedDriver
from ..simulation.allocator.events import GROWTH, RELEASES
from ..simulation.allocator.out_of_memory import DeviceOutOfMemoryError, FailedRequest
from ..simulation.allocator.replay import (
    Mismatch,
    RefusedRequest,
    Replay,
    ReplayComparison,
    RequestReplay,
)
from ..simulation.allocator.settings import AllocatorSettings, read_alloc_conf
from ..simulation.inspect import GPU, MemoryOverhead
from .model import (
    AllocationHistory,
    DeviceHistory,
    EventLog,
    PoolId,
    Segment,
    Stack,
    device_name,
)
from .out_of_memory import SettingsCheck
from .peak import counters_of, first_state, settings_of, trace_of

_UNLIMITED: Final = 2**62
"""Bytes of a GPU that never runs out."""

_BASE: Final = 2**62
"""Of the addresses of new segments, above all that a recording can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Peaks, driver calls and failures of an allocator over a history."""

    peak_active: int  # highest bytes of all blocks in use
    peak_reserved: int  # highest bytes of all segments
    # bytes reserved and not in use while the reserved bytes were highest; the least, if that was
    # so at several moments
    unused_at_peak: int
    calls: DriverCalls  # how often segments and pages came from the driver and went back to it
    # how often cached memory had to be given back for a request; None if not counted
    retries: int | None
    failures: tuple[RefusedRequest, ...]  # requests that failed, in order

    @property
    def out_of_memory(self) -> RefusedRequest | None:
        """The first request that failed; None if all were served."""
        return self.failures[0] if self.failures else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult(Figures):
    """The outcome of replaying the requests of a recorded history.

    The replay ends at the first request that fails and did not fail in the recording.
    """

    device: int  # index of the GPU in the history
    settings: AllocatorSettings  # of the allocator
    capacity: int | None  # bytes of the GPU; None if it never runs out
    taken: int  # bytes of the GPU that the allocator does not get
    # how many events of the history were replayed: all, or those before the request that failed
    events: int
    private_at_peak: int = 0  # bytes of private pools while the reserved bytes were highest


def replay(
    history: AllocationHistory,
    device: int = 0,
    settings: AllocatorSettings | str | None = None,
    capacity: int | None = None,
    taken: int = 0,
    *,
    order_by_address: bool = False,
) -> ReplayResult:
    """Replay the requests of a recorded history in a simulated allocator.

    A history that begins in the middle of a program begins with the segments and blocks that
    existed then, whatever the settings. A text of settings changes the recorded ones. A GPU of no
    capacity never runs out; ``taken`` is what the allocator does not get of it.
    """
    recorded = settings_of(history.settings)
    if settings is None:
        settings = recorded
    elif isinstance(settings, str):
        settings = changed_settings(recorded, settings)
    device_history = history.of_device(device)
    log = device_history.events
    driver = SimulatedDriver(_UNLIMITED if capacity is None else capacity, taken, base=_BASE)
    trace = trace_of(device_history, recorded)
    for segment in trace.initial:
        driver.adopt(segment.address, segment.size, segment.is_expandable)
    run = _Requests(trace, driver, settings, device, order_by_address=order_by_address)
    runs = release_runs(log, first_state(device_history, recorded).segments, recorded)
    events = run.follow(log, {run.first: run for run in runs}, trace.pools)
    done = run.finish()
    return ReplayResult(
        **figures_of(done),
        retries=done.stats["num_alloc_retries"],
        device=device,
        settings=settings,
        capacity=capacity,
        taken=taken,
        events=events,
        private_at_peak=done.private_at_peak,
    )


def figures_of(done: Replay) -> dict[str, Any]:
    """The fields of ``Figures``, without retries, that the outcome of a replay has."""
    return {
        "peak_active": done.stats["active_bytes"]["all"]["peak"],
        "peak_reserved": done.stats["reserved_bytes"]["all"]["peak"],
        "unused_at_peak": done.unused_at_peak,
        "calls": done.calls,
        "failures": tuple(done.out_of_memory),
    }


def changed_settings(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    """Settings of which some are changed.

    >>> settings = AllocatorSettings.parse("max_split_size_mb:64")
    >>> settings = changed_settings(settings, "expandable_segments:True")
    >>> settings.max_split_size // 2**20, settings.expandable_segments
    (64, True)
    """
    return replace(settings, **read_alloc_conf(text, settings.large_segment_size))


class ReleaseRun(NamedTuple):
    """Segments or pages that went back to the GPU one after the other."""

    first: int  # index of the event of the first one
    last: int  # index of the event of the last one
    is_of_request: bool  # the program did not empty the cache; see Note [What is replayed]


def release_runs(
    log: EventLog, segments: Sequence[Segment], settings: AllocatorSettings
) -> Iterator[ReleaseRun]:
    """All runs of releases of a history, in order."""
    groups = list(_groups(log))
    begin = sum(segment.size for segment in segments)
    reserved = list(accumulate((group.sign * group.size for group in groups), initial=begin))
    highest = max(reserved)
    end = _Group(0, len(log) - 1, len(log) - 1, 0)
    for before, earlier, run, later in zip(
        reserved, [end, *groups], groups, [*groups[1:], end], strict=False
    ):
        if run.sign >= 0:
            continue
        if earlier.sign > 0 or log.action_names[log.actions[later.first]] == "oom":
            is_of_request = True
        elif later.sign <= 0:
            is_of_request = False
        else:
            fits = before + later.size <= highest and not settings.garbage_collection_threshold
            stack, other = log.stacks[run.first], log.stacks[later.first]
            is_of_request = not fits and (not stack or not other or stack == other)
        yield ReleaseRun(run.first, run.last, is_of_request)


class _Group(NamedTuple):
    """Events of one kind, one after the other but for completed frees."""

    sign: int  # 1 for memory that comes from the GPU, -1 for what goes back, 0 for other events
    first: int
    last: int
    size: int  # bytes that come or go


def _groups(log: EventLog) -> Iterator[_Group]:
    signs = [(name in GROWTH) - (name in RELEASES) for name in log.action_names]
    passing = {number for number, name in enumerate(log.action_names) if name == "free_completed"}
    events = (index for index, action in enumerate(log.actions) if action not in passing)
    for sign, group in groupby(events, lambda index: signs[log.actions[index]]):
        indexes = list(group)
        size = sum(log.sizes[index] for index in indexes) if sign else 0
        yield _Group(sign, indexes[0], indexes[-1], size)


class _Requests(RequestReplay):
    """A replay on a GPU that has what is asked for, or has not."""

    def follow(
        self, log: EventLog, runs: Mapping[int, ReleaseRun], pools: Mapping[int, PoolId]
    ) -> int:
        """Replay all events, or those before the request that fails, and return how many."""
        allocator, moved, malloc = self.allocator, self.addresses, self.malloc
        waiting: dict[int, int] = {}
        events = pairwise(chain(log.changes(), [("", 0, 0, 0)]))
        for index, ((action, address, size, stream), following) in enumerate(events):
            if action == "alloc":
                try:
                    moved[address] = malloc(size, stream, pools.get(index))
                except DeviceOutOfMemoryError as error:
                    self.failed(index, size, error, was_recorded=False)
                    return index
            elif action == "free_completed":
                if address in moved:
                    allocator.free(moved.pop(address))
                elif address in waiting:
                    allocator.work.finish(waiting.pop(address))
                    allocator.process_events()
            elif action == "free_requested":
                if following[:2] != ("free_completed", address) and address in moved:
                    # See Note [Frees that wait].
                    waiting[address] = busy = -1 - index
                    allocator.record_stream(moved[address], busy)
                    allocator.work.sleep(busy)
                    allocator.free(moved.pop(address))
            elif action == "oom":
                try:
                    # The recording does not tell how long the program would have kept it.
                    allocator.free(malloc(size, stream, pools.get(index)))
                except DeviceOutOfMemoryError as error:
                    self.failed(index, size, error, was_recorded=True)
            elif index in runs:
                run = runs[index]
                names = map(log.action_names.__getitem__, log.actions[index : run.last + 1])
                released = (at for at, name in enumerate(names, index) if name in RELEASES)
                self.release(map(pools.get, released), is_of_request=run.is_of_request)
        return len(log)


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
    device_history, settings = history.of_device(device), settings_of(history.settings)
    trace = trace_of(device_history, settings)
    begun = {}
    for order_by_address in (False, True):
        done = ReplayComparison(trace, settings, order_by_address, most_mismatches=1).run()
        if not done.mismatches:
            break
        begun[order_by_address] = done.mismatches[0].index
    else:
        order_by_address = begun[True] > begun[False]
        done = ReplayComparison(trace, settings, order_by_address, _MOST_DIFFERENCES).run()
    return ReplayCheck(
        Figures(**figures_of(done), retries=None) if done.stats else None,
        done.allocations,
        done.segments_checked,
        len({mismatch.index for mismatch in done.mismatches}),
        done.mismatches[0] if done.mismatches else None,
        done.final_matches or device_history.initial is not None,
        order_by_address,
    )


def recorded_figures(history: AllocationHistory, device: int = 0) -> Figures:
    device_history = history.of_device(device)
    active, reserved = counters_of(device_history, settings_of(history.settings))
    log, peak = device_history.events, max(reserved)
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
        calls=DriverCalls(
            mallocs=len(log.indexes("segment_alloc")),
            frees=len(log.indexes("segment_free")),
            maps=len(log.indexes("segment_map")),
            unmaps=len(log.indexes("segment_unmap")),
        ),
        retries=recorded_retries(history, device, failures),
        failures=tuple(failures),
    )


def recorded_retries(
    history: AllocationHistory, device: int, failures: Sequence[RefusedRequest]
) -> int:
    """The number of times that cached memory went back to the GPU for a request."""
    device_history, settings = history.of_device(device), settings_of(history.settings)
    runs = release_runs(
        device_history.events, first_state(device_history, settings).segments, settings
    )
    ends = {run.last for run in runs if run.is_of_request}
    return len(ends) + sum(failure.index - 1 not in ends for failure in failures)


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
    private_pools: int  # how many private pools have segments
    recorded: Figures
    check: ReplayCheck
    settings: str
    variants: tuple[Variant, ...]
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run
    # how many events came before the first one and were dropped; None if that is not known
    dropped: int | None = 0

    @property
    def name(self) -> str:
        return device_name(self.device, self.run)


def what_if(
    history: AllocationHistory,
    device: int = 0,
    settings: str = "",
    gpus: Sequence[tuple[str, GPU]] = (),
) -> WhatIf:
    device_history, recorded_settings = history.of_device(device), settings_of(history.settings)
    changed = changed_settings(recorded_settings, settings)
    check = check_replay(history, device)
    order, recorded = check.order_by_address, check.figures
    if recorded is None or not check.matches:
        recorded = recorded_figures(history, device)
    else:
        retries = recorded_retries(history, device, recorded.failures)
        recorded = replace(recorded, retries=retries)
    made_again = partial(replay, history, device, changed, order_by_address=order)
    variants = []
    for name, gpu in gpus:
        context = MemoryOverhead.of(gpu, None, 0).context
        variants.append(Variant(name, gpu, made_again(gpu.total_memory, context)))
    if settings and not gpus:
        failed = recorded.out_of_memory
        capacity = None if failed is None else failed.reserved + failed.free
        variants.append(Variant("", None, made_again(capacity, 0)))
    first = first_state(device_history, recorded_settings)
    private = {*first.pools.values(), *(segment.pool_id for segment in first.segments)}
    return WhatIf(
        device,
        device_history.events,
        history.stacks,
        sum(segment.size for segment in first.segments),
        len(private - {None}),
        recorded,
        check,
        settings,
        tuple(variants),
        dropped=device_history.dropped,
    )


LONGEST: Final = 300_000
"""Numbers of a log that are made again: more take too long for a report."""


def check_settings(
    request: FailedRequest,
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
