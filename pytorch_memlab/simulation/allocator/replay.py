"""Replays what a real allocator did and compares, allocation by allocation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from .adopted_segments import AdoptedSegment, adopt_segments
from .caching_allocator import CachingAllocator, ReservedPeak
from .driver import DriverCalls, RecordedDriver
from .out_of_memory import OutOfMemory
from .settings import AllocatorSettings

_GROWTH = frozenset({"segment_alloc", "segment_map"})
_RELEASES = frozenset({"segment_free", "segment_unmap"})
_IGNORED = frozenset({"free_requested", "snapshot"})

Range = tuple[int, int, int]
"""Index of an event, address, and size in bytes."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One event at which the replay differs from the recording.

    Args:
        index: of the event in the trace.
        message: what differs.
    """

    index: int
    message: str


@dataclass(frozen=True, slots=True)
class ReplayedError:
    """A request that fails in the recording and in the replay.

    Args:
        index: of the event in the trace.
        message: text of ``torch.OutOfMemoryError``.
        active: bytes of all blocks in use then.
        reserved: bytes of all segments then.
    """

    index: int
    message: str
    active: int = 0
    reserved: int = 0


@dataclass(slots=True)
class Replay:
    """The result of a replay.

    Args:
        allocations: how many allocations were compared.
        mismatches: events at which the two differ.
        segments_checked: how many segments made or freed were compared, and how many ranges of
            pages that got or lost memory.
        final_matches: whether all segments and blocks are as recorded in the end.
        out_of_memory: requests that fail in both.
        stats: the allocator's counters in the end, nested as
            ``torch.cuda.memory_stats_as_nested_dict()`` nests them, in bytes or counts; peaks are
            those since the recording began.
        unused_at_peak: bytes reserved and not in use while the reserved bytes were highest; the
            least, if that was so at several moments.
        calls: how many times the allocator called each function of its driver.
    """

    allocations: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    segments_checked: int = 0
    final_matches: bool = False
    out_of_memory: list[ReplayedError] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    unused_at_peak: int = 0
    calls: DriverCalls = field(default_factory=DriverCalls)


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
        return _Replayer(trace, settings, order_by_address, most_mismatches).run()
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"not an allocation trace: {error!r}") from error


class _Replayer:
    def __init__(
        self,
        trace: Mapping[str, Any],
        settings: AllocatorSettings | None,
        order_by_address: bool,
        most_mismatches: int | None,
    ) -> None:
        self._trace = trace
        self._most_mismatches = most_mismatches
        self._driver = RecordedDriver()
        self._driver.total = trace.get("total_memory", self._driver.total)
        mapped = [tuple(event[1:4]) for event in trace["events"] if event[0] == "segment_map"]
        self._driver.mapped = [address for address, _, _ in mapped]
        if settings is None:
            text = trace["settings"].get("PYTORCH_CUDA_ALLOC_CONF") or ""
            settings = AllocatorSettings.parse(text)
        self._allocator = CachingAllocator(
            self._driver, settings, order_by_address=order_by_address
        )
        self._result = Replay()
        self._addresses: dict[int, int] = {}
        self._releases: list[Range] = []
        self._releases_within: list[Range] = []
        segments = [self._adopted(segment) for segment in trace["initial"]]
        for begin in adopt_segments(self._allocator, segments, mapped):
            self._driver.adopt_range(begin)
        self._allocator.reset_peak_stats()
        self._reserved = ReservedPeak(self._allocator)

    def run(self) -> Replay:
        try:
            self._run()
        except _EnoughError:
            return self._result
        result = self._result
        result.final_matches = (
            not self._releases_within and list(self._state()) == self._recorded_final()
        )
        result.stats = self._allocator.memory_stats()
        result.unused_at_peak = self._reserved.unused
        result.calls = self._driver.call_counts
        return result

    def _run(self) -> None:
        handlers = {
            **dict.fromkeys(_GROWTH, self._growth),
            "alloc": self._alloc,
            "free": self._free,
            "free_completed": self._free,
            "oom": self._oom,
        }
        events: Sequence[Sequence[Any]] = self._trace["events"]
        for index, event in enumerate(events):
            kind, address, size, stream = event[:4]
            if kind in _RELEASES:
                self._releases.append((index, address, size))
                continue
            if kind in _IGNORED:
                continue
            if kind not in handlers:
                raise UsageError(f"event {index} has the unknown kind {kind!r}")
            self._release()
            handlers[kind](index, address, size, stream)
        self._release()
        self._tell_unneeded()

    def _adopted(self, segment: Mapping[str, Any]) -> AdoptedSegment:
        blocks = []
        for address, size, allocated, *requested in segment["blocks"]:
            blocks.append((size, requested[0] if allocated else None))
            if allocated:
                self._addresses[address] = address
        return AdoptedSegment(
            segment["address"],
            segment["stream"],
            segment["pool"] == "small",
            bool(segment.get("expandable")),
            blocks,
        )

    def _growth(self, index: int, address: int, size: int, _stream: int) -> None:
        later = self._driver.later
        growth = later[-1] if later else self._driver.expected
        growth.append((index, address, size))

    def _alloc(self, index: int, address: int, size: int, stream: int) -> None:
        self._result.allocations += 1
        try:
            actual = self._malloc(index, size, stream)
        except OutOfMemory:
            self._differs(index, f"{size} bytes refused, recorded at {address:#x}")
            return
        self._addresses[address] = actual
        if actual != address:
            self._differs(index, f"{size} bytes at {actual:#x}, recorded at {address:#x}")

    def _oom(self, index: int, free: int, size: int, stream: int) -> None:
        driver = self._driver
        total, driver.total = driver.total, self._total_memory(free)
        driver.available = free
        try:
            actual = self._malloc(index, size, stream)
        except OutOfMemory as error:
            allocator = self._allocator
            self._result.out_of_memory.append(
                ReplayedError(index, str(error), allocator.active_bytes, allocator.reserved_bytes)
            )
        else:
            self._allocator.free(actual)
            self._differs(index, f"{size} bytes at {actual:#x}, recorded as out of memory")
        finally:
            driver.total, driver.available = total, None

    def _total_memory(self, free: int) -> int:
        """The GPU's capacity, or the least that it can be when a request fails."""
        if "total_memory" in self._trace:
            return int(self._trace["total_memory"])
        reserved: int = self._allocator.memory_stats()["reserved_bytes"]["all"]["current"]
        growth = [*self._driver.expected, *(one for some in self._driver.later for one in some)]
        grown = sum(size for _, _, size in growth)
        released = sum(size for _, _, size in self._releases_within)
        return free + reserved + grown - released

    def _malloc(self, index: int, size: int, stream: int) -> int:
        """Allocate, and compare what the allocator asked the driver for.

        Raises:
            OutOfMemory: as the recording has it, or else the allocator differs from it.
        """
        driver = self._driver
        announced = len(driver.expected) + sum(map(len, driver.later))
        driver.freed.clear()
        try:
            return self._allocator.malloc(size, stream)
        finally:
            self._result.segments_checked += announced
            for mismatch in driver.mismatches:
                self._differs(index, mismatch)
            driver.mismatches.clear()
            self._reserved.note()
            self._tell_unneeded()
            if self._releases_within:
                self._compare_releases(self._releases_within)
                self._releases_within = []

    def _tell_unneeded(self) -> None:
        driver = self._driver
        for growth in (driver.expected, *driver.later):
            for index, address, size in growth:
                noun = "segment" if self._kind(index) == "segment_alloc" else "range"
                self._differs(index, f"no {noun} of {size} bytes was needed at {address:#x}")
        driver.expected.clear()
        driver.later.clear()

    def _free(self, index: int, address: int, size: int, _stream: int) -> None:
        actual = self._addresses.pop(address, None)
        if actual is None:
            self._differs(index, f"{size} bytes freed at {address:#x}, where none are allocated")
        else:
            self._allocator.free(actual)

    def _release(self) -> None:
        """Take a run of releases over: one after growth belongs to the request that follows."""
        releases, self._releases = self._releases, []
        if not releases:
            return
        if self._driver.expected:
            self._releases_within += releases
            self._driver.later.append([])
        else:
            self._driver.freed.clear()
            self._allocator.empty_cache()
            self._compare_releases(releases)

    def _compare_releases(self, releases: Sequence[Range]) -> None:
        """Compare recorded releases with those that the allocator made."""
        self._result.segments_checked += len(releases)
        recorded = [address for _, address, _ in releases]
        freed = self._driver.freed
        for index, address, size in releases:
            noun = "segment" if self._kind(index) == "segment_free" else "range"
            if address not in freed:
                self._differs(index, f"the {noun} at {address:#x} is not free")
            elif noun == "range" and self._driver.unmapped.get(address) != size:
                actual = self._driver.unmapped.get(address)
                self._differs(index, f"{actual} bytes unmapped at {address:#x}, recorded {size}")
        last = releases[-1][0]
        for address in sorted(set(freed).difference(recorded)):
            noun = "range" if address in self._driver.unmapped else "segment"
            self._differs(last, f"the {noun} at {address:#x} is free, recorded as kept")
        if freed != recorded and sorted(freed) == sorted(recorded):
            same = [mine == theirs for mine, theirs in zip(freed, recorded, strict=True)]
            self._differs(releases[same.index(False)][0], "segments are freed in another order")

    def _kind(self, index: int) -> str:
        return str(self._trace["events"][index][0])

    def _differs(self, index: int, message: str) -> None:
        mismatches = self._result.mismatches
        mismatches.append(Mismatch(index, message))
        if len(mismatches) == self._most_mismatches:
            raise _EnoughError

    def _state(self) -> Iterator[tuple[Any, ...]]:
        for segment in self._allocator.snapshot():
            yield (
                segment["address"],
                segment["total_size"],
                segment["stream"],
                segment["segment_type"],
                [_block(block) for block in segment["blocks"]],
            )

    def _recorded_final(self) -> list[tuple[Any, ...]]:
        return [
            (
                segment["address"],
                segment["size"],
                segment["stream"],
                segment["pool"],
                [tuple(block[:3]) for block in segment["blocks"]],
            )
            for segment in sorted(self._trace["final"], key=lambda one: int(one["address"]))
        ]


def _block(block: Mapping[str, Any]) -> tuple[int, int, int]:
    return block["address"], block["size"], int(block["state"] == "active_allocated")
