"""Replays what a real allocator did and compares, allocation by allocation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from .allocator_settings import AllocatorSettings
from .caching_allocator import CachingAllocator
from .driver import RecordedDriver


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One event at which the replay differs from the recording.

    Args:
        index: of the event in the trace.
        message: what differs.
    """

    index: int
    message: str


@dataclass(slots=True)
class Replay:
    """What a replay found.

    Args:
        allocations: how many allocations were compared.
        mismatches: events at which the two differ.
        segments_checked: how many segments made or freed were compared.
        final_matches: whether all segments and blocks are as recorded in the end.
    """

    allocations: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    segments_checked: int = 0
    final_matches: bool = False


def replay(trace: Mapping[str, Any]) -> Replay:
    """Run a recorded allocation trace through the allocator.

    The recorded segments' addresses are given to the allocator; which block each allocation gets,
    and when segments are made and freed, it decides itself. Among blocks of one size it takes the
    lowest address, as the PyTorch versions did that the traces come from. A run of freed segments
    is replayed as one ``empty_cache``.

    Args:
        trace: ``settings``, ``initial`` and ``final`` segments, and ``events``: lists of a kind
            (``segment_alloc``, ``segment_free``, ``alloc``, ``free``), an address, a size in bytes
            and a stream.

    Returns:
        what was compared, and every difference.

    Raises:
        UsageError: the trace is not of this form.
    """
    try:
        return _Replayer(trace).run()
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"not an allocation trace: {error!r}") from error


class _Replayer:
    def __init__(self, trace: Mapping[str, Any]) -> None:
        self._trace = trace
        self._driver = RecordedDriver()
        settings = AllocatorSettings.parse(trace["settings"].get("PYTORCH_CUDA_ALLOC_CONF") or "")
        if settings.expandable_segments:
            raise UsageError("a trace of expandable segments does not tell when pages were mapped")
        self._allocator = CachingAllocator(self._driver, settings, order_by_address=True)
        self._result = Replay()
        self._addresses: dict[int, int] = {}
        for segment in trace["initial"]:
            self._adopt(segment)

    def run(self) -> Replay:
        handlers = {
            "segment_alloc": self._segment_alloc,
            "alloc": self._alloc,
            "free": self._free,
        }
        events: Sequence[Sequence[Any]] = self._trace["events"]
        position = 0
        while position < len(events):
            kind, address, size, stream = events[position][:4]
            if kind == "segment_free":
                position = self._segments_freed(events, position)
                continue
            if kind not in handlers:
                raise UsageError(f"event {position} has the unknown kind {kind!r}")
            handlers[kind](position, address, size, stream)
            position += 1
        self._result.final_matches = (
            not self._driver.expected and list(self._state()) == self._recorded_final()
        )
        return self._result

    def _adopt(self, segment: Mapping[str, Any]) -> None:
        blocks = []
        for address, size, allocated, *requested in segment["blocks"]:
            blocks.append((size, requested[0] if allocated else None))
            if allocated:
                self._addresses[address] = address
        self._allocator.adopt_segment(
            segment["address"],
            segment["stream"],
            blocks,
            is_small=segment["pool"] == "small",
        )

    def _segment_alloc(self, index: int, address: int, size: int, _stream: int) -> None:
        self._driver.expected.append((index, address, size))

    def _alloc(self, index: int, address: int, size: int, stream: int) -> None:
        self._result.allocations += 1
        driver = self._driver
        announced = len(driver.expected)
        actual = self._allocator.malloc(size, stream)
        self._addresses[address] = actual
        self._result.segments_checked += announced
        for surprise in driver.surprises:
            self._differs(index, surprise)
        driver.surprises.clear()
        for segment_index, segment, segment_size in driver.expected:
            self._differs(
                segment_index, f"no segment of {segment_size} bytes was needed at {segment:#x}"
            )
        driver.expected.clear()
        if actual != address:
            self._differs(index, f"{size} bytes at {actual:#x}, recorded at {address:#x}")

    def _free(self, index: int, address: int, size: int, _stream: int) -> None:
        actual = self._addresses.pop(address, None)
        if actual is None:
            self._differs(index, f"{size} bytes freed at {address:#x}, where none are allocated")
        else:
            self._allocator.free(actual)

    def _segments_freed(self, events: Sequence[Sequence[Any]], start: int) -> int:
        """Compare a run of freed segments with those that the allocator gives back."""
        stop = start
        while stop < len(events) and events[stop][0] == "segment_free":
            stop += 1
        self._driver.freed.clear()
        self._allocator.empty_cache()
        recorded = [events[index][1] for index in range(start, stop)]
        freed = self._driver.freed
        self._result.segments_checked += len(recorded)
        for index, address in enumerate(recorded, start):
            if address not in freed:
                self._differs(index, f"the segment at {address:#x} is not free")
        for address in sorted(set(freed).difference(recorded)):
            self._differs(stop - 1, f"the segment at {address:#x} is free, recorded as kept")
        if freed != recorded and sorted(freed) == sorted(recorded):
            order = [mine == theirs for mine, theirs in zip(freed, recorded, strict=True)]
            self._differs(start + order.index(False), "segments are freed in another order")
        return stop

    def _differs(self, index: int, message: str) -> None:
        self._result.mismatches.append(Mismatch(index, message))

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
