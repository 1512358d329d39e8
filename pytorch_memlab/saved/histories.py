"""Allocation histories, which are compressed, and the holders of a peak as JSON, and back."""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable
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
from .checked_json import Checked, DamagedError

_LARGEST: Final = 4 << 30
"""Bytes that a history may have when it is not compressed."""

_BLOCK_FIELDS: Final = 7


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


def read_history(data: Checked) -> AllocationHistory:
    """The inverse of ``history_data``."""
    unpacked = _unpacked(data.text("zlib"))
    texts = unpacked.texts("texts")
    stacks = [_stack(unpacked, frames, texts) for frames in unpacked.lists("stacks")]
    devices = [_device(one, texts, len(stacks)) for one in unpacked.objects("devices")]
    settings = unpacked.value("settings")
    if not isinstance(settings, dict):
        raise DamagedError("the settings of the history are no object")
    steps = unpacked.indexes("steps", 2**64) if unpacked.has("steps") else None
    return AllocationHistory(devices, stacks, settings, steps)


def _unpacked(text: str) -> Checked:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), _LARGEST)
        if not unpacker.eof:
            raise DamagedError("its history is cut off, or larger than 4 GiB")
        data = json.loads(content)
    except (ValueError, zlib.error, RecursionError):
        raise DamagedError("its history cannot be unpacked") from None
    if not isinstance(data, dict):
        raise DamagedError("its history is no object")
    return Checked(data)


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


def _device(data: Checked, texts: tuple[str, ...], stacks: int) -> DeviceHistory:
    events = EventLog(_event(data, fields, texts, stacks) for fields in data.rows("events", 9))
    events.pools = _pools(data, "events", len(events))
    return DeviceHistory(
        data.number("device"),
        events,
        _segments(data, "segments", texts, stacks),
        _segments(data, "initial", texts, stacks) if data.has("initial") else None,
        data.flag("is_rounded"),
    )


def _segments(data: Checked, name: str, texts: tuple[str, ...], stacks: int) -> list[Segment]:
    segments = [_segment(data, one, texts, stacks) for one in data.rows(name, 6)]
    for place, pool_id in _pools(data, name, len(segments)).items():
        segments[place] = replace(segments[place], pool_id=pool_id)
    return segments


def _pools(data: Checked, name: str, length: int) -> dict[int, PoolId]:
    """The private pools of events or segments, which older files lack."""
    if not data.has("pools"):
        return {}
    inner = data.object("pools")
    return {
        inner.index(name, length, place): (inner.count(name, first), inner.count(name, second))
        for place, first, second in inner.rows(name, 3)
    }


def _event(data: Checked, fields: list[Any], texts: tuple[str, ...], stacks: int) -> Event:
    action, address, size, stream, time, stack, forward, category, module = fields
    index = data.index
    return Event(
        texts[index("events", len(texts), action)],
        index("events", 2**64, address),
        data.count("events", size),
        data.number("events", stream),
        data.number("events", time),
        index("events", stacks, stack),
        index("events", stacks, forward),
        category_named(texts[index("events", len(texts), category)]),
        texts[index("events", len(texts), module)],
    )


def _segment(data: Checked, fields: list[Any], texts: tuple[str, ...], stacks: int) -> Segment:
    address, size, is_expandable, stream, is_small, blocks = fields
    if not isinstance(is_expandable, bool) or not isinstance(is_small, bool | None):
        raise DamagedError("a segment has other than true or false")
    if not isinstance(blocks, list):
        raise DamagedError("a segment has no list of blocks")
    return Segment(
        data.index("segments", 2**64, address),
        data.count("segments", size),
        is_expandable,
        tuple(_block(data, block, texts, stacks) for block in blocks),
        data.number("segments", stream),
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


def read_holders(data: Checked, run: str = "") -> PeakHolders:
    """The inverse of ``holders_data``."""
    texts = data.texts("texts")
    stacks = [_stack(data, frames, texts) for frames in data.lists("stacks")]
    blocks = tuple(_block(data, fields, texts, len(stacks)) for fields in data.lists("blocks"))
    active = data.count("active")
    if active != sum(block.size for block in blocks):
        raise DamagedError("the blocks of a peak do not add up to it")
    peak = Peak(
        data.number("device"),
        active,
        data.count("reserved"),
        data.number("event"),
        data.count("events"),
        blocks,
        run=run,
        private=_private(data.object("private"), texts)
        if data.has("private")
        else NO_PRIVATE_MEMORY,
    )
    return PeakHolders(peak, stacks)


def _private_data(private: PrivateMemory, texts: Texts) -> dict[str, Any]:
    """The memory of private pools at a peak."""
    places = [[texts[stored(source_name(file))], line] for file, line in private.captures]
    return {"reserved": private.reserved, "unused": private.unused, "captures": places}


def _private(data: Checked, texts: tuple[str, ...]) -> PrivateMemory:
    index, count = data.index, data.count
    captures = tuple(
        (restored(texts[index("captures", len(texts), file)]), count("captures", line))
        for file, line in data.rows("captures", 2)
    )
    return PrivateMemory(count("reserved"), count("unused"), captures)


def _stack_data(stack: Stack, texts: Texts) -> list[list[int]]:
    return [[texts[stored(source_name(one.filename))], one.line, texts[one.name]] for one in stack]


def _stack(data: Checked, frames: list[Any], texts: tuple[str, ...]) -> Stack:
    found = []
    for frame in frames:
        if not isinstance(frame, list) or len(frame) != 3:
            raise DamagedError("a frame of a stack has other than three fields")
        file, line, name = frame
        found.append(
            Frame(
                restored(texts[data.index("stacks", len(texts), file)]),
                data.count("stacks", line),
                texts[data.index("stacks", len(texts), name)],
            )
        )
    return tuple(found)


def _block_data(block: Block, texts: Texts) -> list[int | None]:
    category, module = texts[str(block.category)], texts[block.module]
    numbers = [block.address, block.size, block.requested, block.stack, block.forward]
    return [*numbers, category, module]


def _block(data: Checked, fields: object, texts: tuple[str, ...], stacks: int) -> Block:
    if not isinstance(fields, list) or len(fields) != _BLOCK_FIELDS:
        raise DamagedError(f"a block has other than {_BLOCK_FIELDS} fields")
    address, size, requested, stack, forward, category, module = fields
    return Block(
        # An address is of 64 bits without a sign.
        data.index("blocks", 2**64, address),
        data.count("blocks", size),
        data.count("blocks", requested),
        None if stack is None else data.index("blocks", stacks, stack),
        data.index("blocks", max(stacks, 1), forward),
        category_named(texts[data.index("blocks", len(texts), category)]),
        texts[data.index("blocks", len(texts), module)],
    )
