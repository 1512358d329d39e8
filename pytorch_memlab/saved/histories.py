"""Allocation histories, which are compressed, and the holders of a peak as JSON, and back."""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from .._common.ipython import source_name
from .._common.shared_paths import restored, stored
from ..history.holders import PeakHolders
from ..history.model import (
    AllocationHistory,
    Block,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    PoolId,
    Segment,
    Stack,
    category_named,
)
from ..history.peak import Peak
from ..simulation.inspect import NO_PRIVATE_MEMORY, PrivateMemory
from .checked import (
    DamagedError,
    a_list,
    an_object,
    column,
    count,
    flag,
    index,
    member,
    number,
    reader_of,
    row,
    rows,
    text,
)

_LARGEST: Final = 4 << 30
"""Bytes that a history may have when it is not compressed."""

_BLOCK_FIELDS: Final = 7
_EVENT_FIELDS: Final = 9

_CHUNK: Final = 1 << 16
"""Events that are read at a time."""


Texts = defaultdict[str, int]
"""Texts that stand once, and are named by their index."""


def history_data(history: AllocationHistory) -> dict[str, Any]:
    """An allocation history as an object with one text."""
    texts = _no_texts()
    data = {
        "stacks": [_stack_data(stack, texts) for stack in history.stacks],
        "devices": [
            {
                "device": one.device,
                "is_rounded": one.is_rounded,
                "events": [_event_data(event, texts) for event in one.events],
                "segments": _segments_data(one.segments, texts),
                "initial": None if one.initial is None else _segments_data(one.initial, texts),
                "pools": {
                    "events": [[index, *pool_id] for index, pool_id in one.events.pools.items()],
                    "segments": _pools_data(one.segments),
                    "initial": _pools_data(one.initial or ()),
                },
            }
            for one in history.devices
        ],
        "settings": json.loads(json.dumps(history.settings, default=str)),
        "steps": None if history.steps is None else list(history.steps),
        "texts": list(texts),
    }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode())
    return {"zlib": base64.b64encode(packed).decode()}


def read_history(data: object) -> AllocationHistory:
    """The inverse of ``history_data``."""
    packed = text("zlib", member(an_object("history", data), "zlib"))
    unpacked = _unpacked(packed)
    texts = _texts_of(unpacked)
    stacks = [_stack(frames, texts) for frames in a_list("stacks", member(unpacked, "stacks"))]
    devices = [
        _device(one, texts, len(stacks)) for one in a_list("devices", member(unpacked, "devices"))
    ]
    settings = member(unpacked, "settings")
    if not isinstance(settings, dict):
        raise DamagedError("the settings of the history are no object")
    steps = reader_of(tuple[int, ...] | None)("steps", unpacked.get("steps"))
    return AllocationHistory(devices, stacks, settings, steps)


def _unpacked(packed: str) -> dict[str, Any]:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed, validate=True), _LARGEST)
        if not unpacker.eof:
            raise DamagedError("its history is cut off, or larger than 4 GiB")
        data = json.loads(content)
    except (ValueError, zlib.error, RecursionError):
        raise DamagedError("its history cannot be unpacked") from None
    if not isinstance(data, dict):
        raise DamagedError("its history is no object")
    return data


def _texts_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    found: tuple[str, ...] = reader_of(tuple[str, ...])("texts", member(data, "texts"))
    return found


def _no_texts() -> Texts:
    texts: Texts = defaultdict()
    texts.default_factory = texts.__len__
    return texts


def _event_data(event: Event, texts: Texts) -> list[int]:
    action, *numbers, category, module = event
    return [texts[action], *numbers, texts[str(category)], texts[module]]


def _segments_data(segments: Iterable[Segment], texts: Texts) -> list[list[Any]]:
    rows = []
    for one in segments:
        blocks = [_block_data(block, texts) for block in one.blocks]
        rows.append([one.address, one.size, one.is_expandable, one.stream, one.is_small, blocks])
    return rows


def _pools_data(segments: Iterable[Segment]) -> list[list[int]]:
    """The private pools of segments, by their places."""
    return [[place, *one.pool_id] for place, one in enumerate(segments) if one.pool_id]


def _device(data: object, texts: Sequence[str], stacks: int) -> DeviceHistory:
    data = an_object("devices", data)
    events = _events(data, texts, stacks)
    events.pools = _pools(data, "events", len(events))
    return DeviceHistory(
        number("device", member(data, "device")),
        events,
        _segments(data, "segments", texts, stacks),
        None if data.get("initial") is None else _segments(data, "initial", texts, stacks),
        flag("is_rounded", member(data, "is_rounded")),
    )


def _events(data: Mapping[str, Any], texts: Sequence[str], stacks: int) -> EventLog:
    """The events, by columns of some rows at a time: there are millions."""
    log = EventLog()
    found = a_list("events", member(data, "events"))
    for start in range(0, len(found), _CHUNK):
        part = found[start : start + _CHUNK]
        if {*map(type, part)} != {list} or {*map(len, part)} != {_EVENT_FIELDS}:
            for one in part:
                row("events", one, _EVENT_FIELDS)
        columns = zip(*part, strict=True)
        action, address, size, stream, time, stack, forward, category, module = columns
        log.extend(
            actions=_numbers(action, texts, log.number_of),
            addresses=column("events", address, 0, 2**64),
            sizes=column("events", size, 0, 2**63),
            streams=column("events", stream, -(2**63), 2**63),
            times=column("events", time, -(2**63), 2**63),
            stacks=column("events", stack, 0, stacks),
            forwards=column("events", forward, 0, stacks),
            categories=_numbers(category, texts, lambda name: category_named(name).number),
            modules=_numbers(module, texts, log.module_names.number_of),
        )
    return log


def _numbers(
    values: Sequence[Any], texts: Sequence[str], number_of: Callable[[str], int]
) -> list[int]:
    """The numbers of the names whose indexes a column has."""
    names = dict.fromkeys(column("events", values, 0, len(texts)))
    try:
        numbers = {place: number_of(texts[place]) for place in names}
    except ValueError as error:  # more kinds of events than there are
        raise DamagedError(str(error)) from None
    return [numbers[place] for place in values]


def _segments(
    data: Mapping[str, Any], name: str, texts: Sequence[str], stacks: int
) -> list[Segment]:
    segments = [_segment(fields, texts, stacks) for fields in rows(data, name, 6)]
    for place, pool_id in _pools(data, name, len(segments)).items():
        segments[place] = replace(segments[place], pool_id=pool_id)
    return segments


def _pools(data: Mapping[str, Any], name: str, length: int) -> dict[int, PoolId]:
    """The private pools of events or segments, which older files lack."""
    if data.get("pools") is None:
        return {}
    inner = an_object("pools", data["pools"])
    return {
        index(name, place, length): (count(name, first), count(name, second))
        for place, first, second in rows(inner, name, 3)
    }


def _segment(fields: Sequence[Any], texts: Sequence[str], stacks: int) -> Segment:
    address, size, is_expandable, stream, is_small, blocks = fields
    if not isinstance(is_expandable, bool) or not isinstance(is_small, bool | None):
        raise DamagedError("a segment has other than true or false")
    if not isinstance(blocks, list):
        raise DamagedError("a segment has no list of blocks")
    return Segment(
        index("segments", address, 2**64),
        count("segments", size),
        is_expandable,
        tuple([_block(block, texts, stacks) for block in blocks]),
        number("segments", stream),
        is_small,
    )


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


def read_holders(data: object, run: str = "") -> PeakHolders:
    """The inverse of ``holders_data``."""
    data = an_object("peaks", data)
    texts = _texts_of(data)
    stacks = [_stack(frames, texts) for frames in a_list("stacks", member(data, "stacks"))]
    blocks = a_list("blocks", member(data, "blocks"))
    private = data.get("private")
    peak = Peak(
        number("device", member(data, "device")),
        count("active", member(data, "active")),
        count("reserved", member(data, "reserved")),
        number("event", member(data, "event")),
        count("events", member(data, "events")),
        tuple([_block(fields, texts, len(stacks)) for fields in blocks]),
        run=run,
        private=NO_PRIVATE_MEMORY if private is None else _private(private, texts),
    )
    if peak.active != sum(block.size for block in peak.blocks):
        raise DamagedError("the blocks of a peak do not add up to it")
    return PeakHolders(peak, stacks)


def _private_data(private: PrivateMemory, texts: Texts) -> dict[str, Any]:
    """The memory of private pools at a peak."""
    places = [[texts[stored(source_name(file))], line] for file, line in private.captures]
    return {"reserved": private.reserved, "unused": private.unused, "captures": places}


def _private(data: object, texts: Sequence[str]) -> PrivateMemory:
    data = an_object("private", data)
    captures = tuple(
        (restored(texts[index("captures", file, len(texts))]), count("captures", line))
        for file, line in rows(data, "captures", 2)
    )
    reserved, unused = (count(name, member(data, name)) for name in ("reserved", "unused"))
    return PrivateMemory(reserved, unused, captures)


def _stack_data(stack: Stack, texts: Texts) -> list[list[int]]:
    return [[texts[stored(source_name(one.filename))], one.line, texts[one.name]] for one in stack]


def _stack(frames: object, texts: Sequence[str]) -> Stack:
    found = []
    for frame in a_list("stacks", frames):
        if not isinstance(frame, list) or len(frame) != 3:
            raise DamagedError("a frame of a stack has other than three fields")
        file, line, name = frame
        found.append(
            Frame(
                restored(texts[index("stacks", file, len(texts))]),
                count("stacks", line),
                texts[index("stacks", name, len(texts))],
            )
        )
    return tuple(found)


def _block_data(block: Block, texts: Texts) -> list[int | None]:
    category, module = texts[str(block.category)], texts[block.module]
    numbers = [block.address, block.size, block.requested, block.stack, block.forward]
    return [*numbers, category, module]


def _block(fields: object, texts: Sequence[str], stacks: int) -> Block:
    if not isinstance(fields, list) or len(fields) != _BLOCK_FIELDS:
        raise DamagedError(f"a block has other than {_BLOCK_FIELDS} fields")
    address, size, requested, stack, forward, category, module = fields
    return Block(
        # An address is of 64 bits without a sign.
        index("blocks", address, 2**64),
        count("blocks", size),
        count("blocks", requested),
        None if stack is None else index("blocks", stack, stacks),
        index("blocks", forward, max(stacks, 1)),
        category_named(texts[index("blocks", category, len(texts))]),
        texts[index("blocks", module, len(texts))],
    )
