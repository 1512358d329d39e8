"""From ``torch.cuda.memory._snapshot()`` to a trace of allocations. Needs no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytorch_memlab.saved.recording import KINDS

_SKIPPED = frozenset({"free_requested", "snapshot", "user_defined"})
_OP = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+Backward\d*)::apply")
_KERNEL = re.compile(r"\bat::native::(?:\(anonymous namespace\)::)?\w+")
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[\d.]*)[/\\]")


class UnknownHistoryError(ValueError):
    """The history holds what a trace cannot tell, or not all of it."""


def trace_of(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    settings: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
    device: int = 0,
    total_memory: int | None = None,
) -> dict[str, Any]:
    """The trace of what one device's allocator did between two snapshots.

    Args:
        before: the snapshot taken when recording began; its history is not looked at.
        after: the snapshot taken at the end, with the history since ``before``.
        settings: of the allocator; ``PYTORCH_CUDA_ALLOC_CONF`` among them.
        versions: what it was recorded with, kept as it is.
        device: index of the GPU.
        total_memory: bytes of the GPU.

    Returns:
        ``settings``, ``versions``, ``initial``, ``events`` and ``final``, and ``total_memory``
        where it is given.

    Raises:
        UnknownHistoryError: a kind of event that traces do not have.
    """
    capacity = {} if total_memory is None else {"total_memory": total_memory}
    return {
        **capacity,
        "settings": dict(settings),
        "versions": dict(versions or {}),
        "initial": _segments(before, device, with_requests=True),
        "events": _events(after["device_traces"][device]),
        "final": _segments(after, device, with_requests=False),
    }


def _segments(snapshot: Mapping[str, Any], device: int, with_requests: bool) -> list[Any]:
    segments = []
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        blocks, address = [], segment["address"]
        for block in segment["blocks"]:
            allocated = int(block["state"] == "active_allocated")
            one = [address, block["size"], allocated]
            if allocated and with_requests:
                one.append(block["requested_size"])
            blocks.append(one)
            address += block["size"]
        expandable = {"expandable": True} if segment.get("is_expandable") else {}
        segments.append(
            {
                "address": segment["address"],
                "size": segment["total_size"],
                "stream": segment["stream"],
                "pool": segment["segment_type"],
                **expandable,
                "blocks": blocks,
            }
        )
    return segments


def _events(history: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    events: list[list[Any]] = []
    for entry in history:
        action = entry["action"]
        if action in _SKIPPED:
            continue
        if action not in KINDS:
            raise UnknownHistoryError(f"a trace has no events of the kind {action!r}")
        first = entry["device_free" if action == "oom" else "addr"]
        event = [KINDS[action], first, entry["size"], entry["stream"]]
        if action == "alloc":
            event.append(context_of(entry.get("frames", ())))
        events.append(event)
    return events


def context_of(frames: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The op that an allocation was made for, read off its stack, innermost frame first.

    Args:
        frames: each with ``name``, ``filename`` and ``line``.

    Returns:
        ``op``, ``node``, ``kernel``, ``where`` and ``lib``, each if there is one.
    """
    context: dict[str, str] = {}
    for frame in frames:
        name, filename, line = frame["name"], frame["filename"], frame["line"]
        if filename.endswith(".py"):
            file = os.path.basename(filename)
            context.setdefault("lib", f"{file}:{name}")
            if not _LIBRARIES.search(filename):
                context.setdefault("where", f"{file}:{line}:{name}")
            continue
        for key, pattern in (("op", _OP), ("node", _NODE), ("kernel", _KERNEL)):
            found = pattern.search(name)
            if found:
                context.setdefault(key, found[found.re.groups])
    return context
