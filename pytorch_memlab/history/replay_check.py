"""Compares a replay with its recording, and reads the figures of the recording itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from ..simulation.allocator.driver import DriverCalls
from ..simulation.allocator.replay import Mismatch, Replay
from ..simulation.allocator.replay import replay as replay_trace
from .event_log import EventLog, log_of
from .first_state import GROWTH, RELEASES, first_state, parts_of, serves_small
from .model import AllocationHistory, DeviceHistory, Segment
from .peak import AllocatorState
from .replay import FailedRequest, Figures, release_runs
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
        """True if replay and recording are equal."""
        return not self.differences and self.ends_alike


def check_replay(history: AllocationHistory, device: int = 0) -> ReplayCheck:
    """Replay a recording on the recorded segments, and compare every address."""
    settings = settings_of(history.settings)
    trace = _trace(history.of_device(device), first_state(history.of_device(device), settings))
    begun = {}
    for order_by_address in (False, True):
        done = replay_trace(
            trace, settings=settings, order_by_address=order_by_address, most_mismatches=1
        )
        if not done.mismatches:
            return _check(done, history.of_device(device), order_by_address)
        begun[order_by_address] = done.mismatches[0].index
    best = begun[True] > begun[False]
    done = replay_trace(
        trace, settings=settings, order_by_address=best, most_mismatches=_MOST_DIFFERENCES
    )
    return _check(done, history.of_device(device), best)


def recorded_figures(history: AllocationHistory, device: int = 0) -> Figures:
    """Figures of a recording, without a replay."""
    one, settings = history.of_device(device), settings_of(history.settings)
    state = AllocatorState(one, settings)
    peak_active, peak_reserved = state.active, state.reserved
    unused = peak_reserved - peak_active
    failures = []
    log = log_of(one.events)
    for index, (action, address, size) in enumerate(log.changes()):
        state.follow(action, address, size)
        active, reserved = state.active, state.reserved
        if active > peak_active:
            peak_active = active
        if reserved > peak_reserved:
            peak_reserved, unused = reserved, reserved - active
        elif reserved == peak_reserved and reserved - active < unused:
            unused = reserved - active
        if action == "oom":
            stack = log.stacks[index]
            failures.append(FailedRequest(index, size, stack, True, active, reserved, address, ""))
    return Figures(
        peak_active=peak_active,
        peak_reserved=peak_reserved,
        unused_at_peak=unused,
        calls=DriverCalls(*(_count(log, name) for name in _CALLS)),
        retries=recorded_retries(history, device, failures),
        failures=tuple(failures),
    )


def recorded_retries(
    history: AllocationHistory, device: int, failures: Sequence[FailedRequest]
) -> int:
    """The number of times that cached memory went back to the GPU for a request."""
    one, settings = history.of_device(device), settings_of(history.settings)
    runs = release_runs(log_of(one.events), first_state(one, settings), settings)
    ends = {run.last for run in runs if run.is_of_request}
    return len(ends) + sum(failure.event - 1 not in ends for failure in failures)


_CALLS: Final = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


def _count(log: EventLog, action: str) -> int:
    return log.actions.count(log.number_of(action)) if action in log.action_names else 0


def _check(done: Replay, device: DeviceHistory, order_by_address: bool) -> ReplayCheck:
    figures = None
    if done.stats:
        figures = Figures(
            peak_active=done.stats["active_bytes"]["all"]["peak"],
            peak_reserved=done.stats["reserved_bytes"]["all"]["peak"],
            unused_at_peak=done.unused_at_peak,
            calls=done.calls,
            retries=None,
            failures=tuple(
                FailedRequest(
                    one.index,
                    device.events[one.index].size,
                    device.events[one.index].stack,
                    True,
                    one.active,
                    one.reserved,
                    device.events[one.index].address,
                    one.message,
                )
                for one in done.out_of_memory
            ),
        )
    return ReplayCheck(
        figures,
        done.allocations,
        done.segments_checked,
        len({one.index for one in done.mismatches}),
        done.mismatches[0] if done.mismatches else None,
        done.final_matches or device.initial is not None,
        order_by_address,
    )


def _trace(device: DeviceHistory, segments: Sequence[Segment]) -> dict[str, Any]:
    """A recording in the form that ``simulation.replay`` takes."""
    return {
        "initial": [_as_dict(segment) for segment in segments],
        "events": _Rows(log_of(device.events)),
        "final": [_as_dict(segment) for segment in device.segments],
    }


def _as_dict(segment: Segment) -> dict[str, Any]:
    blocks = []
    address = segment.address
    for size, requested in parts_of(segment):
        known = () if requested is None else (requested,)
        blocks.append([address, size, int(requested is not None), *known])
        address += size
    return {
        "address": segment.address,
        "size": segment.size,
        "stream": segment.stream,
        "pool": "small" if serves_small(segment) else "large",
        "expandable": segment.is_expandable,
        "blocks": blocks,
    }


_Row = tuple[str, int, int, int]


class _Rows(Sequence[_Row]):
    """Events as ``simulation.replay`` takes them; it ignores those of other kinds."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._names = [name if name in _KINDS else "snapshot" for name in log.action_names]

    def __len__(self) -> int:
        return len(self._log)

    @overload
    def __getitem__(self, index: int) -> _Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_Row]: ...

    def __getitem__(self, index: int | slice) -> _Row | Sequence[_Row]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        log = self._log
        name = self._names[log.actions[index]]
        return name, log.addresses[index], log.sizes[index], log.streams[index]

    def __iter__(self) -> Iterator[_Row]:
        log = self._log
        return zip(
            map(self._names.__getitem__, log.actions),
            log.addresses,
            log.sizes,
            log.streams,
            strict=True,
        )


_KINDS: Final = GROWTH | RELEASES | {"alloc", "free_completed", "oom"}
