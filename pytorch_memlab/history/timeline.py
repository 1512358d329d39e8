"""Active bytes over time, in bands by category or by line of the program.

Note [Points of a timeline]
A history has millions of events and a picture a thousand columns. Moments at which no counter
moved are left out. If there are still too many, they are split into equal buckets, and of each
bucket three moments stay: those of its highest and lowest active bytes, and of its highest reserved
bytes. Every point is a moment that was, so its bands add up to the active bytes at it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from .category import Category
from .holders import charged_frame, innermost_of_user
from .model import AllocationHistory, Block, Event, Frame, Stack
from .peak import AllocatorState
from .settings import settings_of

Grouping = Literal["category", "line"]

_MOST_POINTS: Final = 1800
_PER_BUCKET: Final = 3
_MOST_LINES: Final = 8
OTHER_LINES: Final = "other lines"

_OPTIMIZER: Final = "torch/optim/optimizer.py"
_STEP: Final = "wrapper"
"""The function of that file in which the ``step`` of every optimizer runs."""

_Counters = npt.NDArray[np.int64]
_Place = Category | Frame | None
_PlaceOf = Callable[[Event | Block], _Place]


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the active bytes.

    Args:
        name: of the category, or the place in the program, such as ``train.py:12 step``.
        sizes: bytes at each point.
    """

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The memory of one GPU over time.

    Args:
        device: index of the GPU.
        events: how many the history has.
        by: what the bands are: categories, or lines of the program.
        points: for each point, the index of the event that it follows; -1 for the beginning.
        seconds: at each point, since the first event; all 0 if the history has no times.
        active: bytes of all blocks in use at each point.
        reserved: bytes of all segments at each point.
        bands: parts that add up to ``active`` at each point, the lowest first.
        frames: of the program, on whose line each point's event happened; None if not known.
        peak: index of the first point with the highest active bytes.
        steps: indexes of the events that end steps of an optimizer.
        failures: indexes of the events at which the GPU ran out of memory.
        capacity: bytes of the GPU; None if not known.
    """

    device: int
    events: int
    by: Grouping
    points: tuple[int, ...]
    seconds: tuple[float, ...]
    active: tuple[int, ...]
    reserved: tuple[int, ...]
    bands: tuple[Band, ...]
    frames: tuple[Frame | None, ...]
    peak: int
    steps: tuple[int, ...]
    failures: tuple[int, ...]
    capacity: int | None = None


def timeline_of(
    history: AllocationHistory,
    device: int = 0,
    capacity: int | None = None,
    by: Grouping | None = None,
) -> Timeline:
    """The memory of one GPU over time, in at most some 1,800 points.

    Args:
        history: of the process.
        device: index of the GPU.
        capacity: bytes of the GPU, if known.
        by: what the bands are; None for categories if the history has any, else for lines.

    Returns:
        Moments that were; those of the highest active and reserved bytes are among them.
    """
    one = history.devices[device]
    events = one.events
    state = AllocatorState(one, settings_of(history.settings))
    in_use = _InUse(events, list(state.blocks.values()))
    active, reserved = _follow(events, state, in_use.sizes)
    moments = _chosen(active, reserved)
    peak = int(np.argmax(active))
    by = by or ("category" if in_use.has_categories() else "line")
    bands = (
        _categories(in_use, moments)
        if by == "category"
        else _lines(in_use, moments, peak, history.stacks)
    )
    points = tuple(moment - 1 for moment in moments)
    return Timeline(
        device,
        len(events),
        by,
        points,
        _seconds(events, points),
        tuple(active[moments].tolist()),
        tuple(reserved[moments].tolist()),
        tuple(band for band in bands if any(band.sizes)),
        tuple(_frame(events, point, history.stacks) for point in points),
        moments.index(peak),
        tuple(_step_ends(events, history.stacks)),
        tuple(index for index, event in enumerate(events) if event.action == "oom"),
        capacity,
    )


def _follow(
    events: Sequence[Event], state: AllocatorState, sizes: array[int]
) -> tuple[_Counters, _Counters]:
    """The counters before the first event and after each; the sizes of the blocks are added."""
    active, reserved = array("q", [state.active]), array("q", [state.reserved])
    for event in events:
        sizes.append(state.follow(event))
        active.append(state.active)
        reserved.append(state.reserved)
    return np.frombuffer(active, np.int64), np.frombuffer(reserved, np.int64)


def _chosen(active: _Counters, reserved: _Counters) -> list[int]:
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


class _InUse:
    """Which bytes are in use at which moment.

    Args:
        events: in order.
        first: the blocks in use before them.
    """

    def __init__(self, events: Sequence[Event], first: Sequence[Block]) -> None:
        self._events = events
        self._first = first
        self.sizes = array("q")
        """Bytes of the block that each event allocated."""

    def has_categories(self) -> bool:
        """Whether the category of any block is known."""
        return any(one.category is not Category.UNKNOWN for one in self._first) or any(
            event.category is not Category.UNKNOWN for event in self._events
        )

    def by_place(self, place_of: _PlaceOf, moments: Sequence[int]) -> Iterator[dict[_Place, int]]:
        """Bytes in use by place, at each of some moments in order."""
        sums: dict[_Place, int] = {}
        blocks: dict[int, tuple[_Place, int]] = {}
        for block in self._first:
            place = place_of(block)
            blocks[block.address] = place, block.size
            sums[place] = sums.get(place, 0) + block.size
        done = 0
        for moment in moments:
            for index in range(done, moment):
                event = self._events[index]
                if event.action == "alloc":
                    place, size = place_of(event), self.sizes[index]
                    blocks[event.address] = place, size
                    sums[place] = sums.get(place, 0) + size
                elif event.action == "free_completed" and event.address in blocks:
                    place, size = blocks.pop(event.address)
                    sums[place] -= size
            done = moment
            yield dict(sums)


def _categories(in_use: _InUse, moments: Sequence[int]) -> list[Band]:
    found = list(in_use.by_place(lambda made: made.category, moments))
    return [_band(category.value, category, found) for category in Category]


def _lines(
    in_use: _InUse, moments: Sequence[int], peak: int, stacks: Sequence[Stack]
) -> list[Band]:
    """A band for each of the lines that hold most at the peak, and one for all others."""
    known: dict[tuple[int | None, int], Frame] = {}

    def frame_of(made: Event | Block) -> Frame:
        key = made.stack, made.forward
        if key not in known:
            known[key] = charged_frame(made, stacks)[0]
        return known[key]

    (at_peak,) = in_use.by_place(frame_of, [peak])
    largest = {
        place: _name(place)
        for place in sorted(at_peak, key=lambda place: -at_peak[place])[:_MOST_LINES]
        if isinstance(place, Frame) and at_peak[place]
    }

    def band_of(made: Event | Block) -> Frame | None:
        frame = frame_of(made)
        return frame if frame in largest else None

    found = list(in_use.by_place(band_of, moments))
    bands = [_band(name, place, found) for place, name in largest.items()]
    return [*bands, _band(OTHER_LINES, None, found)]


def _band(name: str, place: _Place, found: Sequence[dict[_Place, int]]) -> Band:
    return Band(name, tuple(sums.get(place, 0) for sums in found))


def _name(frame: Frame) -> str:
    """Such as ``train.py:12 step``; for a place that is not known the reason."""
    if not frame.filename:
        return frame.name
    return f"{os.path.basename(frame.filename)}:{frame.line} {frame.name}"


def _seconds(events: Sequence[Event], points: Sequence[int]) -> tuple[float, ...]:
    if not events:
        return (0.0,) * len(points)
    begin = events[0].time
    return tuple((events[max(point, 0)].time - begin) / 1e6 for point in points)


def _frame(events: Sequence[Event], point: int, stacks: Sequence[Stack]) -> Frame | None:
    stack = stacks[events[point].stack] if point >= 0 else ()
    return innermost_of_user(stack) if stack else None


def _step_ends(events: Sequence[Event], stacks: Sequence[Stack]) -> Iterator[int]:
    """The last event of each step of an optimizer that allocates or frees in it."""
    in_step = [
        any(frame.name == _STEP and _is_of_optimizer(frame.filename) for frame in stack)
        for stack in stacks
    ]
    last = None
    for index, event in enumerate(events):
        if in_step[event.stack]:
            last = index
        elif last is not None and event.action == "alloc":
            yield last
            last = None
    if last is not None:
        yield last


def _is_of_optimizer(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_OPTIMIZER)
