"""An allocation history as JSON, and back: compressed, as it has a row for every event."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

from ..history.category import category_named
from ..history.event_log import EventLog
from ..history.model import AllocationHistory, DeviceHistory, Event, Segment
from .checked_json import Checked, DamagedError
from .saved_holders import Texts, block_data, read_block, read_stack, stack_data

_LARGEST: Final = 4 << 30
"""Bytes that a history may have when it is not compressed."""


def history_data(history: AllocationHistory) -> dict[str, Any]:
    """An allocation history as an object with one text."""
    texts = Texts()
    data = {
        "stacks": [stack_data(stack, texts) for stack in history.stacks],
        "devices": [
            {
                "device": one.device,
                "is_rounded": one.is_rounded,
                "events": [_event_data(event, texts) for event in one.events],
                "segments": _segments_data(one.segments, texts),
                "initial": None if one.initial is None else _segments_data(one.initial, texts),
            }
            for one in history.devices
        ],
        "settings": json.loads(json.dumps(history.settings, default=str)),
        "texts": texts.all(),
    }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode())
    return {"zlib": base64.b64encode(packed).decode()}


def read_history(data: Checked) -> AllocationHistory:
    """The inverse of ``history_data``."""
    unpacked = _unpacked(data.text("zlib"))
    texts = unpacked.texts("texts")
    stacks = [read_stack(unpacked, frames, texts) for frames in unpacked.lists("stacks")]
    devices = [_device(one, texts, len(stacks)) for one in unpacked.objects("devices")]
    settings = unpacked.value("settings")
    if not isinstance(settings, dict):
        raise DamagedError("the settings of the history are no object")
    return AllocationHistory(devices, stacks, settings)


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


def _event_data(event: Event, texts: Texts) -> list[int]:
    return [
        texts.index(event.action),
        event.address,
        event.size,
        event.stream,
        event.time,
        event.stack,
        event.forward,
        texts.index(str(event.category)),
        texts.index(event.module),
    ]


def _segments_data(segments: Iterable[Segment], texts: Texts) -> list[list[Any]]:
    return [
        [
            one.address,
            one.size,
            one.is_expandable,
            one.stream,
            one.is_small,
            [block_data(block, texts) for block in one.blocks],
        ]
        for one in segments
    ]


def _device(data: Checked, texts: tuple[str, ...], stacks: int) -> DeviceHistory:
    events = EventLog(_event(data, fields, texts, stacks) for fields in data.rows("events", 9))
    initial = None
    if data.value("initial") is not None:
        initial = [_segment(data, one, texts, stacks) for one in data.rows("initial", 6)]
    return DeviceHistory(
        data.number("device"),
        events,
        [_segment(data, one, texts, stacks) for one in data.rows("segments", 6)],
        initial,
        data.flag("is_rounded"),
    )


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
        tuple(read_block(data, block, texts, stacks) for block in blocks),
        data.number("segments", stream),
        is_small,
    )
