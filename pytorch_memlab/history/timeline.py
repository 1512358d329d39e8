"""Active bytes over time, in bands by category or by line of the program.

Note [Points of a timeline]
A history has millions of events and a picture a thousand columns. Moments at which no counter
moved are left out. If there are still too many, they are split into equal buckets, and of each
bucket three moments stay: those of its highest and lowest active bytes, and of its highest reserved
bytes. Every point is a moment that was, so its bands add up to the active bytes at it.

Note [Bands of a timeline]
Each event changes the active bytes by some bytes, which belong to the band of the block that it
allocates or frees. So for each event the block is noted: by the index of the event that allocated
it, or, past the last event, by its place among the blocks before the first one. These come before
the events with all of their bytes. The rest is sums over columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from .._common.process.ipython import file_name
from .._common.text.prose_size import prose_size
from ..errors import SnapshotError
from .holders import ENGINE, charged_frame, innermost_of_user
from .model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    EventLog,
    Frame,
    Stack,
    UsedBlock,
    device_name,
)
from .peak import counters_of, first_state, settings_of

Grouping = Literal["category", "line"]

_MOST_POINTS: Final = 1800
_PER_BUCKET: Final = 3
_MOST_LINES: Final = 8
OTHER_LINES: Final = "other lines"

_OPTIMIZER: Final = "torch/optim/optimizer.py"
_STEP: Final = "wrapper"
"""The function of that file in which the ``step`` of every optimizer runs."""


BACKWARD: Final = "backward"
OPTIMIZER_STEP: Final = "optimizer step"
"""Phases of a program that its stacks tell; the others have no name."""


_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the active bytes."""

    name: str  # of the category, or the place in the program, such as ``train.py:12 step``
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The memory of one GPU over time."""

    device: int  # index of the GPU
    events: int
    by: Grouping
    # for each point, the index of the event that it follows; -1 for the beginning
    points: tuple[int, ...]
    # at each point, since the first event; all 0 if the history has no times
    seconds: tuple[float, ...]
    active: tuple[int, ...]  # bytes of all blocks in use at each point
    reserved: tuple[int, ...]  # bytes of all segments at each point
    bands: tuple[Band, ...]  # parts that add up to ``active`` at each point, the lowest first
    # of the program, on whose line each point's event happened; None if not known
    frames: tuple[Frame | None, ...]
    peak: int  # index of the first point with the highest active bytes
    steps: tuple[int, ...]  # indexes of the events that end steps of an optimizer
    failures: tuple[int, ...]  # indexes of the events at which the GPU ran out of memory
    capacity: int | None = None  # bytes of the GPU; None if not known
    # whether the steps were followed; False if those that take no memory are missing
    has_all_steps: bool = True
    # for each point, the phase in which its event happened; empty if no stack tells any
    phases: tuple[str, ...] = ()
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run

    # how many events came before the first one and were dropped; None if that is not known
    dropped: int | None = 0

    @property
    def name(self) -> str:
        return device_name(self.device, self.run)

    def __repr__(self) -> str:
        """The number of events, the device and the peak."""
        peak = prose_size(self.active[self.peak])
        parts = f"{self.events:,} events, peak {peak}, bands of {self.by}"
        return f"<{type(self).__name__} of {self.name}: {parts}>"


def timeline_of(
    history: AllocationHistory,
    device: int = 0,
    capacity: int | None = None,
    by: Grouping | None = None,
) -> Timeline:
    """The memory of one GPU over time, in at most some 1,800 points."""
    device_history = history.of_device(device)
    settings, log = settings_of(history.settings), device_history.events
    try:
        active, reserved = np.array(counters_of(device_history, settings), np.int64)
    except OverflowError:
        raise SnapshotError("this is no history of a GPU: more than 8 EiB are in use") from None
    first = first_state(device_history, settings).blocks.values()
    moments = _chosen(active, reserved)
    peak = int(np.argmax(active))
    sizes = np.array([block.size for block in first], np.int64)
    in_use = _InUse(np.concatenate((sizes, np.diff(active))), _blocks(log, first), len(first))
    categories = np.array([*log.categories, *(block.category.number for block in first)], np.int64)
    if by is None:
        is_known = bool(np.any(categories != Category.UNKNOWN.number))
        by = "category" if is_known else "line"
    if by == "category":
        bands = [
            Band(category.value, in_use.in_band(categories, category.number, moments))
            for category in Category
        ]
    else:
        bands = _lines(log, first, in_use, moments, peak, history.stacks)
    points = [moment - 1 for moment in moments]
    times = log.times or (0,)
    at_points = [history.stacks[log.stacks[point]] if point >= 0 else () for point in points]
    steps = _steps(history, device_history)
    return Timeline(
        device,
        len(log),
        by,
        tuple(points),
        tuple((times[max(point, 0)] - times[0]) / 1e6 for point in points),
        tuple(active[moments].tolist()),
        tuple(reserved[moments].tolist()),
        tuple(band for band in bands if any(band.sizes)),
        tuple(innermost_of_user(stack) if stack else None for stack in at_points),
        moments.index(peak),
        tuple(steps.clip(0).tolist()),
        tuple(log.indexes("oom")),
        capacity,
        has_all_steps=history.steps is not None,
        phases=_phases(log, history.stacks, points, steps),
        dropped=device_history.dropped,
    )


def _phases(
    log: EventLog, stacks: Sequence[Stack], points: Sequence[int], steps: _Integers
) -> tuple[str, ...]:
    """The phase of each point; frees have no stack, and are in the phase of the event before."""
    of_stack = [_phase(stack) for stack in stacks]
    if not any(of_stack):
        return ()
    has_stack = np.array([bool(stack) for stack in stacks], bool)[np.array(log.stacks, np.int64)]
    latest_known = np.maximum.accumulate(np.where(has_stack, np.arange(len(log)), -1))

    def phase(point: int) -> str:
        event = latest_known[point] if point >= 0 else -1
        if event < 0:
            return ""
        stack_phase = of_stack[log.stacks[event]]
        ended = np.searchsorted(steps, event) < np.searchsorted(steps, point)
        return "" if stack_phase == OPTIMIZER_STEP and ended else stack_phase

    return tuple(map(phase, points))


def _phase(stack: Stack) -> str:
    for frame in stack:
        if frame.name == ENGINE:
            return BACKWARD
        if _is_step(frame):
            return OPTIMIZER_STEP
    return ""


def _is_step(frame: Frame) -> bool:
    return frame.name == _STEP and frame.filename.replace("\\", "/").endswith(_OPTIMIZER)


def _blocks(log: EventLog, first: Iterable[UsedBlock]) -> _Integers:
    """The first blocks, then the block of each event."""
    in_use = {block.address: place for place, block in enumerate(first, len(log))}
    blocks = array("q", in_use.values())
    for index, (action, address, *_) in enumerate(log.changes()):
        block = index
        if action == "alloc":
            in_use[address] = index
        elif action == "free_completed":
            block = in_use.pop(address, index)
        blocks.append(block)
    return np.array(blocks, np.int64)


def _chosen(active: _Integers, reserved: _Integers) -> list[int]:
    """The moments that become points, as numbers of events; see Note [Points of a timeline]."""
    moved = np.flatnonzero((np.diff(active) != 0) | (np.diff(reserved) != 0)) + 1
    moments = np.concatenate(([0], moved))
    if len(moments) > _MOST_POINTS:
        moments = np.array(
            [
                bucket[place]
                for bucket in np.array_split(moments, _MOST_POINTS // _PER_BUCKET)
                for place in (
                    np.argmax(active[bucket]),
                    np.argmin(active[bucket]),
                    np.argmax(reserved[bucket]),
                )
            ]
        )
    return sorted({0, len(active) - 1, *moments.tolist()})


@dataclass(frozen=True, slots=True)
class _InUse:
    """The blocks in use at each moment; see Note [Bands of a timeline]."""

    changes: _Integers  # bytes of the first blocks, and those that each event adds or frees
    blocks: _Integers  # of the changes
    first: int  # how many blocks were in use before the first event

    def in_band(self, bands: _Integers, number: int, moments: Sequence[int]) -> tuple[int, ...]:
        changes = np.where(bands[self.blocks] == number, self.changes, 0)
        sums = np.concatenate(([0], np.cumsum(changes)))[self.first :]
        return tuple(sums[moments].tolist())

    def at(self, bands: _Integers, moment: int) -> _Integers:
        sums = np.zeros(int(bands.max(initial=-1)) + 1, np.int64)
        end = self.first + moment
        np.add.at(sums, bands[self.blocks[:end]], self.changes[:end])
        return sums


def _lines(
    log: EventLog,
    first: Iterable[UsedBlock],
    in_use: _InUse,
    moments: Sequence[int],
    peak: int,
    stacks: Sequence[Stack],
) -> list[Band]:
    """A band for each of the lines that hold most at the peak, and one for all others."""
    numbers: dict[Frame, int] = {}
    numbered: dict[tuple[int | None, int], int] = {}

    def number_of(stack: int | None, forward: int) -> int:
        number = numbered.get((stack, forward))
        if number is None:
            frame, _ = charged_frame(UsedBlock(0, 0, 0, stack, forward), stacks)
            number = numbered[stack, forward] = numbers.setdefault(frame, len(numbers))
        return number

    places = np.array(
        [
            *map(number_of, log.stacks, log.forwards),
            *(number_of(block.stack, block.forward) for block in first),
        ],
        np.int64,
    )
    at_peak = in_use.at(places, peak)
    largest = np.argsort(-at_peak, kind="stable")[:_MOST_LINES].tolist()
    frames = list(numbers)
    band_of_place = np.full(len(frames), _MOST_LINES, np.int64)
    band_of_place[largest] = np.arange(len(largest))
    bands = band_of_place[places]
    names = {_MOST_LINES: OTHER_LINES}
    for number, place in enumerate(largest):
        file, line, name = frames[place]
        names[number] = f"{file_name(file)}:{line} {name}" if file else name
    return [
        Band(name, in_use.in_band(bands, number, moments)) for number, name in sorted(names.items())
    ]


def _steps(history: AllocationHistory, device_history: DeviceHistory) -> _Integers:
    """The events that end steps: the last ones at their times, where the history has these."""
    log = device_history.events
    if history.steps is None:
        return _step_ends(log, history.stacks)
    ends: _Integers = np.searchsorted(np.array(log.times), history.steps, side="right") - 1
    # A step that ends before the first event counts there, unless it ended with a dropped one.
    return ends if device_history.dropped == 0 else ends[ends >= 0]


def _step_ends(log: EventLog, stacks: Sequence[Stack]) -> _Integers:
    """The last event of each step of an optimizer that allocates or frees in it."""
    is_step = np.array(
        [any(map(_is_step, stack)) for stack in stacks],
        bool,
    )
    in_step = is_step[np.array(log.stacks, np.int64)]
    # Between two steps something else is allocated.
    is_counted = in_step.copy()
    is_counted[log.indexes("alloc")] = True
    counted = np.flatnonzero(is_counted)
    is_end = in_step[counted] & ~np.append(in_step[counted][1:], False)
    ends: _Integers = counted[is_end]
    return ends
