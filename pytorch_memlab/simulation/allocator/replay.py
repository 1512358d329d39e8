"""The requests of a recording, made again to a simulated allocator.

``replay`` compares what a real allocator did, allocation by allocation. ``RequestReplay`` is what
every replay needs, whatever its settings and its GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import UsageError
from .blocks import PoolId
from .caching_allocator import CachingAllocator
from .driver import DriverCalls, RecordedDriver, SimulatedDriver, Step
from .events import ACTIONS, GROWTH, RELEASES
from .out_of_memory import DeviceOutOfMemoryError
from .settings import AllocatorSettings


class RecordedSegment(NamedTuple):
    """A segment, or a range of pages of an expandable one."""

    address: int  # where it begins
    stream: int  # that it serves
    is_small: bool  # whether it belongs to the small pool
    is_expandable: bool  # whether it is a range of pages of an expandable segment
    # from the first to the last, size and requested size in bytes, None for a free one
    blocks: list[tuple[int, int | None]]
    pool_id: PoolId | None = None  # the private pool that it belongs to

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.blocks)


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """The events of an allocator, and its segments before and after them."""

    initial: Sequence[RecordedSegment]  # before the first event
    # gives all events: an action, as PyTorch's memory history names it, an address (for ``oom`` the
    # bytes free on the GPU), a size in bytes and a stream
    events: Callable[[], Iterable[tuple[str, int, int, int]]]
    final: Sequence[RecordedSegment]  # after the last event
    total_memory: int | None = None  # bytes of the GPU; None if not known
    # of the events of private pools, by index: requests, and segments that come and go
    pools: Mapping[int, PoolId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One event at which the replay differs from the recording."""

    index: int  # of the event in the trace
    message: str  # what differs


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that fails in a replay."""

    index: int  # of the event in the trace
    message: str  # text of ``torch.OutOfMemoryError``
    size: int  # bytes requested
    active: int  # bytes of all blocks in use then
    reserved: int  # bytes of all segments then
    free: int  # bytes free on the GPU then
    was_recorded: bool  # whether it fails in the recording too


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    allocations: int = 0  # how many were compared
    mismatches: list[Mismatch] = field(default_factory=list)  # events at which the two differ
    # how many segments made or freed were compared, and ranges of pages that got or lost memory
    segments_checked: int = 0
    final_matches: bool = False  # whether all segments and blocks are as recorded in the end
    # requests that fail in both, in order
    out_of_memory: list[RefusedRequest] = field(default_factory=list)
    # the allocator's counters in the end, as ``torch.cuda.memory_stats_as_nested_dict()`` nests
    # them, in bytes or counts; peaks are those since the recording began
    stats: dict[str, Any] = field(default_factory=dict)
    # bytes reserved and not in use while the reserved bytes were highest; the least, if that was
    # so at several moments
    unused_at_peak: int = 0
    private_at_peak: int = 0  # bytes of private pools then
    calls: DriverCalls = field(default_factory=DriverCalls)  # of the allocator to its driver


class RequestReplay:
    """A simulated allocator that gets the requests of a recording."""

    def __init__(
        self,
        recording: AllocationTrace,
        driver: SimulatedDriver,
        settings: AllocatorSettings,
        device: int = 0,
        *,
        order_by_address: bool,
    ) -> None:
        self.driver = driver
        self.allocator = CachingAllocator(
            driver, settings, device, order_by_address=order_by_address
        )
        self.addresses: dict[int, int] = {}  # of each block in use: its address in the recording
        self.result = Replay()
        self.begins = self._adopt(recording)  # of the expandable segments from before
        self.allocator.reset_peak_stats()
        self._highest = self.allocator.reserved_bytes
        self.result.unused_at_peak = self._highest - self.allocator.active_bytes
        self.result.private_at_peak = self.allocator.private_reserved_bytes

    def malloc(self, size: int, stream: int, pool_id: PoolId | None) -> int:
        """Make a request; DeviceOutOfMemoryError if the GPU has no room."""
        try:
            return self.allocator.malloc(size, stream, pool_id)
        finally:
            reserved = self.allocator.reserved_bytes
            if reserved >= self._highest:
                unused = reserved - self.allocator.active_bytes
                if reserved > self._highest or unused < self.result.unused_at_peak:
                    self._highest, self.result.unused_at_peak = reserved, unused
                    self.result.private_at_peak = self.allocator.private_reserved_bytes

    def release(self, pools: Iterable[PoolId | None], *, is_of_request: bool = False) -> None:
        """Empty the cache as it was when segments of these pools went back to the GPU."""
        # A private pool whose segments go back is no longer used. Where no others go back, it was
        # given up by itself.
        pool_ids = dict.fromkeys(pools)
        private = [pool_id for pool_id in pool_ids if pool_id is not None]
        for pool_id in private:
            self.allocator.end_private_pool(pool_id)
        if is_of_request:
            return
        if None in pool_ids:
            self.allocator.empty_cache()
            return
        for pool_id in private:
            self.allocator.empty_cache(pool_id)

    def failed(
        self, index: int, size: int, error: DeviceOutOfMemoryError, *, was_recorded: bool
    ) -> None:
        allocator, free = self.allocator, self.driver.free_memory()
        figures = allocator.active_bytes, allocator.reserved_bytes, free
        self.result.out_of_memory.append(
            RefusedRequest(index, str(error), size, *figures, was_recorded)
        )

    def finish(self) -> Replay:
        """The result, with what the allocator and the driver counted."""
        self.result.stats = self.allocator.memory_stats()
        self.result.calls = self.driver.call_counts
        return self.result

    def _adopt(self, recording: AllocationTrace) -> list[int]:
        """Give the allocator the segments from before, and return where expandable ones begin."""
        # The ranges of one stream and pool are taken for one expandable segment. A recording does
        # not tell where its addresses begin: at the lowest that has memory before or during it.
        allocator = self.allocator
        expandable: dict[tuple[int, bool, PoolId | None], list[RecordedSegment]] = {}
        for segment in recording.initial:
            address = segment.address
            for size, requested in segment.blocks:
                if requested is not None:
                    self.addresses[address] = address
                address += size
            if segment.is_expandable:
                key = segment.stream, segment.is_small, segment.pool_id
                expandable.setdefault(key, []).append(segment)
            else:
                allocator.adopt_segment(
                    segment.address,
                    segment.stream,
                    segment.blocks,
                    is_small=segment.is_small,
                    pool_id=segment.pool_id,
                )
        begins = {key: ranges[0].address for key, ranges in expandable.items()}
        events = enumerate(recording.events() if expandable else ())
        for index, (action, address, size, stream) in events:
            is_small = size % allocator.settings.large_segment_size != 0
            key = stream, is_small, recording.pools.get(index)
            if action == "segment_map" and key in begins:
                begins[key] = min(begins[key], address)
        for key, ranges in expandable.items():
            stream, is_small, pool_id = key
            parts = [(part.address, part.blocks) for part in ranges]
            allocator.adopt_expandable_segment(
                begins[key], stream, parts, is_small=is_small, pool_id=pool_id
            )
        return list(begins.values())


class _EnoughError(Exception):
    """As many differences are found as were asked for."""


def replay(
    trace: Mapping[str, Any],
    *,
    settings: AllocatorSettings | None = None,
    order_by_address: bool = True,
    most_mismatches: int | None = None,
) -> Replay:
    """Run a recorded allocation trace through the allocator.

    The recorded segments' addresses are given to the allocator; which block each allocation gets,
    and when segments and pages are made and freed, it decides itself. A run of freed segments is
    replayed as one ``empty_cache``.

    A recording does not hold all that the text of an error has: the index of the GPU is 0 in it,
    there are no bytes as NVML counts them, and without ``total_memory`` in the trace the GPU's
    capacity is the least possible: what was free on it and what the allocator held.

    Args:
        trace: ``settings``, ``initial`` and ``final`` segments, and ``events``: lists of a kind
            (``segment_alloc``, ``segment_free``, ``segment_map``, ``segment_unmap``, ``alloc``,
            ``free``), an address, a size in bytes and a stream; a list of the kind ``oom`` has the
            bytes free on the GPU in place of an address. ``free_completed`` is a ``free``, and
            ``free_requested`` and ``snapshot`` tell nothing. ``total_memory``, bytes of the GPU,
            may be there.
        settings: of the allocator, in place of those in the trace.
        order_by_address: whether the lowest address among blocks of one size is taken, as the
            PyTorch versions did that the traces of this project come from.
        most_mismatches: how many differences end the replay; None for no end.

    Returns:
        what was compared, and the differences.

    Raises:
        UsageError: the trace is not of this form.
    """
    try:
        if settings is None:
            text = trace["settings"].get("PYTORCH_CUDA_ALLOC_CONF") or ""
            settings = AllocatorSettings.parse(text)
        recording = _recording(trace)
        return ReplayComparison(recording, settings, order_by_address, most_mismatches).run()
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"not an allocation trace: {error!r}") from error


def _recording(trace: Mapping[str, Any]) -> AllocationTrace:
    events = []
    for index, event in enumerate(trace["events"]):
        kind, address, size, stream = event[:4]
        action = "free_completed" if kind == "free" else kind
        if action not in ACTIONS:
            raise UsageError(f"event {index} has the unknown kind {kind!r}")
        events.append((action, address, size, stream))
    initial, final = ([*map(_segment, trace[state])] for state in ("initial", "final"))
    return AllocationTrace(initial, events.__iter__, final, trace.get("total_memory"))


def _segment(segment: Mapping[str, Any]) -> RecordedSegment:
    blocks = [
        (size, (requested[0] if requested else size) if allocated else None)
        for _, size, allocated, *requested in segment["blocks"]
    ]
    return RecordedSegment(
        segment["address"],
        segment["stream"],
        segment["pool"] == "small",
        bool(segment.get("expandable")),
        blocks,
    )


class ReplayComparison(RequestReplay):
    """A replay in the memory that the recording has, event by event."""

    driver: RecordedDriver

    def __init__(
        self,
        recording: AllocationTrace,
        settings: AllocatorSettings,
        order_by_address: bool,
        most_mismatches: int | None,
    ) -> None:
        self._recording = recording
        self._most_mismatches = most_mismatches
        driver = RecordedDriver()
        if recording.total_memory is not None:
            driver.total = recording.total_memory
        driver.mapped = [event[1] for event in recording.events() if event[0] == "segment_map"]
        super().__init__(recording, driver, settings, order_by_address=order_by_address)
        for begin in self.begins:
            driver.adopt_range(begin)
        self._released: list[Step] = []  # while nothing is expected: the program empties the cache
        self._released_within: list[Step] = []  # for the request that follows

    def run(self) -> Replay:
        """Replay all events, or as many as are needed for the most differences."""
        try:
            self._follow()
        except _EnoughError:
            return self.result
        recorded = sorted(
            (
                segment.address,
                segment.stream,
                segment.is_small,
                [(size, requested is not None) for size, requested in segment.blocks],
            )
            for segment in self._recording.final
        )
        self.result.final_matches = not self._released_within and self._state() == recorded
        return self.finish()

    def _follow(self) -> None:
        requests = {"alloc": self._alloc, "free_completed": self._free, "oom": self._oom}
        expected = self.driver.expected
        for index, (action, address, size, stream) in enumerate(self._recording.events()):
            if action in requests:
                self._empty_cache()
                requests[action](index, address, size, stream)
            elif action in GROWTH:
                self._empty_cache()
                expected.append(Step(index, address, size, _noun(action)))
            elif action in RELEASES and not expected:
                self._released.append(Step(index, address, size, _noun(action)))
            elif action in RELEASES:
                self._released_within.append(Step(index, address, size, _noun(action)))
                self.release([self._recording.pools.get(index)], is_of_request=True)
                if expected[-1] is not None:
                    expected.append(None)
        self._empty_cache()
        self._tell_unneeded()

    def _alloc(self, index: int, address: int, size: int, stream: int) -> None:
        self.result.allocations += 1
        try:
            actual = self._malloc(index, size, stream)
        except DeviceOutOfMemoryError:
            self._differs(index, f"{size} bytes refused, recorded at {address:#x}")
            return
        self.addresses[address] = actual
        if actual != address:
            self._differs(index, f"{size} bytes at {actual:#x}, recorded at {address:#x}")

    def _oom(self, index: int, free: int, size: int, stream: int) -> None:
        driver = self.driver
        total, driver.total = driver.total, self._total_memory(free)
        driver.available = free
        try:
            actual = self._malloc(index, size, stream)
        except DeviceOutOfMemoryError as error:
            self.failed(index, size, error, was_recorded=True)
        else:
            self.allocator.free(actual)
            self._differs(index, f"{size} bytes at {actual:#x}, recorded as out of memory")
        finally:
            driver.total, driver.available = total, None

    def _total_memory(self, free: int) -> int:
        """The GPU's capacity, or the least that it can be when a request fails."""
        if self._recording.total_memory is not None:
            return self._recording.total_memory
        grown = sum(step.size for step in self._expected())
        released = sum(step.size for step in self._released_within)
        return free + self.allocator.reserved_bytes + grown - released

    def _expected(self) -> list[Step]:
        return [step for step in self.driver.expected if step is not None]

    def _malloc(self, index: int, size: int, stream: int) -> int:
        """Allocate, and compare what the allocator asked the driver for."""
        driver = self.driver
        self.result.segments_checked += len(self._expected())
        driver.freed.clear()
        try:
            return self.malloc(size, stream, self._recording.pools.get(index))
        finally:
            for mismatch in driver.mismatches:
                self._differs(index, mismatch)
            driver.mismatches.clear()
            self._tell_unneeded()
            if self._released_within:
                self._compare_releases(self._released_within)
                self._released_within = []

    def _tell_unneeded(self) -> None:
        for index, address, size, noun in self._expected():
            self._differs(index, f"no {noun} of {size} bytes was needed at {address:#x}")
        self.driver.expected.clear()

    def _free(self, index: int, address: int, size: int, _stream: int) -> None:
        actual = self.addresses.pop(address, None)
        if actual is None:
            self._differs(index, f"{size} bytes freed at {address:#x}, where none are allocated")
        else:
            self.allocator.free(actual)

    def _empty_cache(self) -> None:
        releases, self._released = self._released, []
        if releases:
            self.driver.freed.clear()
            self.release(self._recording.pools.get(step.event) for step in releases)
            self._compare_releases(releases)

    def _compare_releases(self, releases: Sequence[Step]) -> None:
        """Compare recorded releases with those that the allocator made."""
        self.result.segments_checked += len(releases)
        freed = self.driver.freed
        for index, address, size, noun in releases:
            if address not in freed:
                self._differs(index, f"the {noun} at {address:#x} is not free")
            elif noun == "range" and freed[address] != size:
                self._differs(
                    index, f"{freed[address]} bytes unmapped at {address:#x}, recorded {size}"
                )
        recorded = [step.address for step in releases]
        for address in sorted(freed.keys() - set(recorded)):
            noun = "segment" if freed[address] is None else "range"
            self._differs(
                releases[-1].event, f"the {noun} at {address:#x} is free, recorded as kept"
            )
        if sorted(freed) == sorted(recorded):
            for step, address in zip(releases, freed, strict=True):
                if step.address != address:
                    self._differs(step.event, "segments are freed in another order")
                    break

    def _differs(self, index: int, message: str) -> None:
        mismatches = self.result.mismatches
        mismatches.append(Mismatch(index, message))
        if len(mismatches) == self._most_mismatches:
            raise _EnoughError

    def _state(self) -> list[tuple[Any, ...]]:
        return [
            (
                segment["address"],
                segment["stream"],
                segment["segment_type"] == "small",
                [
                    (block["size"], block["state"] == "active_allocated")
                    for block in segment["blocks"]
                ],
            )
            for segment in self.allocator.segments()
        ]


def _noun(action: str) -> str:
    return "range" if action.endswith("map") else "segment"
