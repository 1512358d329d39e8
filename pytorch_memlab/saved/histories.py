"""Allocation histories, which are compressed, and the holders of a peak as JSON, and back."""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .._common.process.ipython import source_name
from .._common.text.shared_paths import restored, stored
from ..history.holders import PeakHolders
from ..history.model import (
    AllocationHistory,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    PoolId,
    Segment,
    Stack,
    UsedBlock,
    category_named,
)
from ..history.peak import Peak
from ..records import Signed
from ..simulation.inspect import NO_PRIVATE_MEMORY, PrivateMemory
from .checked import Address, DamagedError, Unchecked, record, refused

_LARGEST: Final = 4 << 30
"""Bytes that a history may have when it is not compressed."""

_EVENT_FIELDS: Final = 9

_CHUNK: Final = 1 << 16
"""Events that are read at a time."""

# The rows of files. A name stands once, in ``texts``: rows have its index there.

_FrameRow = tuple[int, int, int]  # name of the file, line, name of the function
# address, size, requested, stack, stack of the forward op, category, module
_BlockRow = tuple[Address, int, int, int | None, int, int, int]
# address, size, is_expandable, stream, is_small, blocks
_SegmentRow = tuple[Address, int, bool, Signed, bool | None, tuple[_BlockRow, ...]]
_PoolRow = tuple[int, int, int]  # index of an event or a segment, the two parts of the pool's id


@dataclass(frozen=True, slots=True)
class _PrivatePart:
    """The memory of private pools at a peak, as a file has it."""

    reserved: int
    unused: int
    captures: tuple[tuple[int, int], ...]  # name of the file, line


@dataclass(frozen=True, slots=True)
class PeakPart:
    """The holders of a peak, as a file has them."""

    device: Signed
    active: int
    reserved: int
    event: Signed
    events: int
    texts: tuple[str, ...]
    stacks: tuple[tuple[_FrameRow, ...], ...]
    blocks: tuple[_BlockRow, ...]
    private: _PrivatePart | None = None


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """An allocation history, as a file has it."""

    zlib: str  # a ``_History`` as JSON, compressed, in base 64


@dataclass(frozen=True, slots=True)
class _History:
    texts: tuple[str, ...]
    stacks: tuple[tuple[_FrameRow, ...], ...]
    devices: tuple[_Device, ...]
    settings: Unchecked
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Pools:
    events: tuple[_PoolRow, ...] = ()
    segments: tuple[_PoolRow, ...] = ()
    initial: tuple[_PoolRow, ...] = ()


@dataclass(frozen=True, slots=True)
class _Device:
    device: Signed
    is_rounded: bool
    events: Unchecked  # millions of rows: ``_events`` checks them
    segments: tuple[_SegmentRow, ...]
    initial: tuple[_SegmentRow, ...] | None = None
    pools: _Pools = _Pools()  # which older files lack
    dropped: int | None = 0  # as older files dropped nothing


Texts = defaultdict[str, int]
"""Texts that stand once, and are named by their index."""


def history_data(history: AllocationHistory) -> dict[str, Any]:
    """An allocation history as an object with one text."""
    texts = _no_texts()
    data = {
        "stacks": [_stack_data(stack, texts) for stack in history.stacks],
        "devices": [
            {
                "device": device.device,
                "is_rounded": device.is_rounded,
                "events": [_event_data(event, texts) for event in device.events],
                "segments": _segments_data(device.segments, texts),
                "initial": None
                if device.initial is None
                else _segments_data(device.initial, texts),
                "pools": {
                    "events": [[index, *pool_id] for index, pool_id in device.events.pools.items()],
                    "segments": _pools_data(device.segments),
                    "initial": _pools_data(device.initial or ()),
                },
                "dropped": device.dropped,
            }
            for device in history.devices
        ],
        "settings": json.loads(json.dumps(history.settings, default=str)),
        "steps": None if history.steps is None else list(history.steps),
        "texts": list(texts),
    }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode())
    return {"zlib": base64.b64encode(packed).decode()}


def read_history(part: HistoryPart) -> AllocationHistory:
    """The inverse of ``history_data``."""
    data = _unpacked(part.zlib)
    texts, stacks = data.texts, len(data.stacks)
    devices = []
    for device in data.devices:
        events = _events(device.events, texts, stacks)
        events.pools = _pool_ids(device.pools.events, len(device.events))
        initial = device.initial
        devices.append(
            DeviceHistory(
                device.device,
                events,
                _segments(device.segments, device.pools.segments, texts, stacks),
                None
                if initial is None
                else _segments(initial, device.pools.initial, texts, stacks),
                device.is_rounded,
                device.dropped,
            )
        )
    if not isinstance(data.settings, dict):
        raise DamagedError("the settings of the history are no object")
    return AllocationHistory(devices, _stacks(data.stacks, texts), data.settings, data.steps)


def _unpacked(packed: str) -> _History:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed, validate=True), _LARGEST)
        if not unpacker.eof:
            raise DamagedError("its history is cut off, or larger than 4 GiB")
        data = json.loads(content)
    except (ValueError, zlib.error, RecursionError):
        raise DamagedError("its history cannot be unpacked") from None
    return record(_History, data, "history")


def _no_texts() -> Texts:
    texts: Texts = defaultdict()
    texts.default_factory = texts.__len__
    return texts


def _event_data(event: Event, texts: Texts) -> list[int]:
    action, *numbers, category, module = event
    return [texts[action], *numbers, texts[str(category)], texts[module]]


def _segments_data(segments: Iterable[Segment], texts: Texts) -> list[list[Any]]:
    rows = []
    for segment in segments:
        blocks = [_block_data(block, texts) for block in segment.blocks]
        rows.append(
            [
                segment.address,
                segment.size,
                segment.is_expandable,
                segment.stream,
                segment.is_small,
                blocks,
            ]
        )
    return rows


def _pools_data(segments: Iterable[Segment]) -> list[list[int]]:
    """The private pools of segments, by their places."""
    return [[place, *segment.pool_id] for place, segment in enumerate(segments) if segment.pool_id]


def _events(rows: object, texts: Sequence[str], stacks: int) -> EventLog:
    try:
        return EventLog.of_columns(texts, _columns(rows, len(texts), stacks))
    except ValueError as error:  # more kinds of events than there are
        raise DamagedError(str(error)) from None


def _columns(rows: object, texts: int, stacks: int) -> Iterator[dict[str, Sequence[int]]]:
    """The fields of events, of some rows at a time."""
    if not isinstance(rows, list):
        raise refused("events", rows, "a list")
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        for row in part:
            if type(row) is not list or len(row) != _EVENT_FIELDS:
                raise refused("events", row, f"a list of {_EVENT_FIELDS}")
        columns = zip(*part, strict=True)
        action, address, size, stream, time, stack, forward, category, module = columns
        yield {
            "actions": _column(action, 0, texts),
            "addresses": _column(address, 0, 2**64),
            "sizes": _column(size, 0, 2**63),
            "streams": _column(stream, -(2**63), 2**63),
            "times": _column(time, -(2**63), 2**63),
            "stacks": _column(stack, 0, stacks),
            "forwards": _column(forward, 0, stacks),
            "categories": _column(category, 0, texts),
            "modules": _column(module, 0, texts),
        }


def _column(values: Sequence[Any], low: int, high: int) -> Sequence[int]:
    """A column of events: integers from ``low`` to below ``high``."""
    if {*map(type, values)} == {int} and low <= min(values) and max(values) < high:
        return values
    wrong = next(value for value in values if type(value) is not int or not low <= value < high)
    raise refused("events", wrong, f"a whole number from {low} to below {high}")


def _segments(
    rows: Sequence[_SegmentRow], pools: Sequence[_PoolRow], texts: Sequence[str], stacks: int
) -> list[Segment]:
    pool_ids = _pool_ids(pools, len(rows))
    return [
        Segment(
            address,
            size,
            is_expandable,
            tuple(_blocks(blocks, texts, stacks)),
            stream,
            is_small,
            pool_ids.get(place),
        )
        for place, (address, size, is_expandable, stream, is_small, blocks) in enumerate(rows)
    ]


def _pool_ids(rows: Iterable[_PoolRow], length: int) -> dict[int, PoolId]:
    """The private pools of events or segments."""
    pool_ids = {place: (first, second) for place, first, second in rows}
    if max(pool_ids, default=-1) >= length:
        raise DamagedError("a pool is of an event or a segment that is not there")
    return pool_ids


def holders_data(holders: PeakHolders) -> dict[str, Any]:
    """The peak of a device, its blocks, and their stacks."""
    peak = holders.peak
    texts = _no_texts()
    return {
        "device": peak.device,
        "active": peak.active,
        "reserved": peak.reserved,
        "event": peak.event,
        "events": peak.events,
        "private": _private_data(peak.private, texts) if peak.private.reserved else None,
        "stacks": [_stack_data(stack, texts) for stack in holders.stacks],
        "blocks": [_block_data(block, texts) for block in peak.blocks],
        "texts": list(texts),
    }


def read_holders(part: PeakPart, run: str = "") -> PeakHolders:
    """The inverse of ``holders_data``."""
    texts, private = part.texts, part.private
    stacks = _stacks(part.stacks, texts)
    blocks = tuple(_blocks(part.blocks, texts, len(stacks)))
    if part.active != sum(block.size for block in blocks):
        raise DamagedError("the blocks of a peak do not add up to it")
    memory = NO_PRIVATE_MEMORY
    if private is not None:
        captures = [(restored(_named(file, texts)), line) for file, line in private.captures]
        memory = PrivateMemory(private.reserved, private.unused, tuple(captures))
    peak = Peak(
        part.device,
        part.active,
        part.reserved,
        part.event,
        part.events,
        blocks,
        run=run,
        private=memory,
    )
    return PeakHolders(peak, stacks)


def _private_data(private: PrivateMemory, texts: Texts) -> dict[str, Any]:
    """The memory of private pools at a peak."""
    places = [[texts[stored(source_name(file))], line] for file, line in private.captures]
    return {"reserved": private.reserved, "unused": private.unused, "captures": places}


def _stack_data(stack: Stack, texts: Texts) -> list[list[int]]:
    return [
        [texts[stored(source_name(frame.filename))], frame.line, texts[frame.name]]
        for frame in stack
    ]


def _stacks(rows: Iterable[Iterable[_FrameRow]], texts: Sequence[str]) -> list[Stack]:
    return [
        tuple(
            [
                Frame(restored(_named(file, texts)), line, _named(name, texts))
                for file, line, name in frames
            ]
        )
        for frames in rows
    ]


def _block_data(block: UsedBlock, texts: Texts) -> list[int | None]:
    category, module = texts[str(block.category)], texts[block.module]
    numbers = [block.address, block.size, block.requested, block.stack, block.forward]
    return [*numbers, category, module]


def _blocks(rows: Iterable[_BlockRow], texts: Sequence[str], stacks: int) -> Iterator[UsedBlock]:
    for address, size, requested, stack, forward, category, module in rows:
        if (stack is not None and stack >= stacks) or forward >= max(stacks, 1):
            raise DamagedError("a block names a stack that is not there")
        kind = category_named(_named(category, texts))
        yield UsedBlock(address, size, requested, stack, forward, kind, _named(module, texts))


def _named(place: int, texts: Sequence[str]) -> str:
    if place >= len(texts):
        raise DamagedError(f"text {place} is named, and there are {len(texts)}")
    return texts[place]
