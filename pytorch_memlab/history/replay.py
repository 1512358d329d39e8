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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Final, NamedTuple

from ..simulation.allocator.adopted_segments import AdoptedSegment, Mapped, adopt_segments
from ..simulation.allocator.caching_allocator import CachingAllocator, ReservedPeak
from ..simulation.allocator.driver import DriverCalls, SimulatedDriver
from ..simulation.allocator.out_of_memory import OutOfMemory
from ..simulation.allocator.settings import AllocatorSettings, read_alloc_conf
from .event_log import EventLog, log_of
from .first_state import GROWTH, RELEASES, first_state, parts_of, serves_small
from .model import AllocationHistory, Segment
from .settings import settings_of

UNLIMITED = 2**62
"""Bytes of a GPU that never runs out."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that the GPU has no room for."""

    event: int  # index of the event of the request
    size: int  # its bytes
    stack: int  # index of its stack in the history
    was_recorded: bool  # whether it failed in the recording too
    active: int  # bytes of all blocks in use then
    reserved: int  # bytes of all segments then
    free: int  # bytes free on the GPU
    message: str  # text of ``torch.OutOfMemoryError``


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
    failures: tuple[FailedRequest, ...]  # requests that failed, in order

    @property
    def out_of_memory(self) -> FailedRequest | None:
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
    one = history.of_device(device)
    log = log_of(one.events)
    driver = SimulatedDriver(UNLIMITED if capacity is None else capacity, taken, base=_BASE)
    allocator = CachingAllocator(driver, settings, device, order_by_address=order_by_address)
    segments = first_state(one, recorded)
    run = _Run(log, allocator, driver, segments)
    runs = release_runs(log, segments, recorded)
    run.go_on({one.first for one in runs if not one.is_of_request})
    return run.result(device, capacity)


def changed_settings(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    """Settings of which some are changed.

    >>> settings = AllocatorSettings.parse("max_split_size_mb:64")
    >>> settings = changed_settings(settings, "expandable_segments:True")
    >>> settings.max_split_size // 2**20, settings.expandable_segments
    (64, True)
    """
    return replace(settings, **read_alloc_conf(text, settings.large_segment_size))


def recorded_capacity(history: AllocationHistory, device: int = 0) -> int | None:
    """Most bytes that the allocator could get, from an out-of-memory event of a history."""
    one = history.of_device(device)
    log = log_of(one.events)
    reserved = sum(segment.size for segment in first_state(one, settings_of(history.settings)))
    for action, address, size in log.changes():
        if action in GROWTH:
            reserved += size
        elif action in RELEASES:
            reserved -= size
        elif action == "oom":
            return reserved + address
    return None


def mapped_pages(log: EventLog) -> Iterator[Mapped]:
    """Address, size and stream of all pages of expandable segments that get memory."""
    for index in log.indexes("segment_map"):
        yield log.addresses[index], log.sizes[index], log.streams[index]


class ReleaseRun(NamedTuple):
    """Segments or pages that went back to the GPU one after the other."""

    first: int  # index of the event of the first one
    last: int  # index of the event of the last one
    is_of_request: bool  # the program did not empty the cache; see Note [What is replayed]


def release_runs(
    log: EventLog, segments: Sequence[Segment], settings: AllocatorSettings
) -> Iterator[ReleaseRun]:
    """All runs of releases of a history, in order."""
    names = log.action_names
    growth = {number for number, name in enumerate(names) if name in GROWTH}
    releases = {number for number, name in enumerate(names) if name in RELEASES}
    passing = {number for number, name in enumerate(names) if name == "free_completed"}
    actions, sizes, stacks = log.actions, log.sizes, log.stacks
    changes = [index for index, action in enumerate(actions) if action in growth | releases]
    begin = sum(segment.size for segment in segments)
    reserved = list(
        accumulate(
            (sizes[n] if actions[n] in growth else -sizes[n] for n in changes), initial=begin
        )
    )
    highest = max(reserved)
    total = len(log)

    def after(index: int) -> int:
        """The next event that is no completed free."""
        index += 1
        while index < total and actions[index] in passing:
            index += 1
        return index

    position = 0
    grown_to = -1
    while position < len(changes):
        first = last = changes[position]
        before = reserved[position]
        position += 1
        if actions[first] in growth:
            grown_to = after(first)
            continue
        while position < len(changes) and after(last) == changes[position]:
            if actions[changes[position]] in growth:
                break
            last = changes[position]
            position += 1
        following = after(last)
        needed, upcoming = 0, following
        while upcoming < total and actions[upcoming] in growth:
            needed += sizes[upcoming]
            upcoming += 1
        if grown_to == first or (following < total and names[actions[following]] == "oom"):
            is_of_request = True
        else:
            fits = before + needed <= highest and not settings.garbage_collection_threshold
            one, other = stacks[first], stacks[min(following, total - 1)]
            is_of_request = bool(needed) and not fits and (not one or not other or one == other)
        yield ReleaseRun(first, last, is_of_request)


_BASE: Final = 2**62
"""Of the addresses of new segments, above all that a recording can have."""


class _Run:
    """One replay."""

    def __init__(
        self,
        log: EventLog,
        allocator: CachingAllocator,
        driver: SimulatedDriver,
        segments: Sequence[Segment],
    ) -> None:
        self._log = log
        self._allocator = allocator
        self._driver = driver
        self._addresses: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._done = 0
        self._failures: list[FailedRequest] = []
        adopted = []
        for one in segments:
            driver.adopt(one.address, one.size, one.is_expandable)
            self._addresses.update((block.address, block.address) for block in one.blocks)
            kinds = serves_small(one), one.is_expandable
            adopted.append(AdoptedSegment(one.address, one.stream, *kinds, list(parts_of(one))))
        adopt_segments(allocator, adopted, mapped_pages(log))
        allocator.reset_peak_stats()
        self._reserved = ReservedPeak(self._allocator)

    def go_on(self, cache_releases: set[int]) -> None:
        log, allocator = self._log, self._allocator
        names, actions, addresses = log.action_names, log.actions, log.addresses
        malloc, free, moved = allocator.malloc, allocator.free, self._addresses
        total = len(log)
        rows = zip(count(), actions, addresses, log.sizes, log.streams)
        for index, action, address, size, stream in rows:
            name = names[action]
            if name == "alloc":
                try:
                    moved[address] = malloc(size, stream)
                except OutOfMemory as error:
                    self._fail(index, size, error, was_recorded=False)
                    self._done = index
                    return
                self._reserved.note()
            elif name == "free_completed":
                if address in moved:
                    free(moved.pop(address))
                elif address in self._waiting:
                    allocator.work.finish(self._waiting.pop(address))
                    allocator.process_events()
            elif name == "free_requested":
                following = index + 1
                is_complete = (
                    following < total
                    and addresses[following] == address
                    and names[actions[following]] == "free_completed"
                )
                if not is_complete and address in moved:
                    self._free_later(index, address)
            elif name == "oom":
                try:
                    served = malloc(size, stream)
                except OutOfMemory as error:
                    self._fail(index, size, error, was_recorded=True)
                else:
                    # The recording does not tell how long the program would have kept it.
                    self._reserved.note()
                    free(served)
            elif index in cache_releases:
                allocator.empty_cache()
        self._done = total

    def result(self, device: int, capacity: int | None) -> ReplayResult:
        stats, driver = self._allocator.memory_stats(), self._driver
        return ReplayResult(
            device=device,
            settings=self._allocator.settings,
            capacity=capacity,
            taken=driver.context,
            events=self._done,
            peak_active=stats["active_bytes"]["all"]["peak"],
            peak_reserved=stats["reserved_bytes"]["all"]["peak"],
            unused_at_peak=self._reserved.unused,
            calls=driver.call_counts,
            retries=stats["num_alloc_retries"],
            failures=tuple(self._failures),
        )

    def _free_later(self, index: int, address: int) -> None:
        """See Note [Frees that wait]."""
        stream = -1 - index
        actual = self._addresses.pop(address)
        self._allocator.record_stream(actual, stream)
        self._allocator.work.sleep(stream)
        self._allocator.free(actual)
        self._waiting[address] = stream

    def _fail(self, index: int, size: int, error: OutOfMemory, *, was_recorded: bool) -> None:
        self._reserved.note()
        allocator = self._allocator
        self._failures.append(
            FailedRequest(
                event=index,
                size=size,
                stack=self._log.stacks[index],
                was_recorded=was_recorded,
                active=allocator.active_bytes,
                reserved=allocator.reserved_bytes,
                free=self._driver.free_memory(),
                message=str(error),
            )
        )
