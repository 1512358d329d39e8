"""From ``torch.cuda.memory._snapshot()``, or a file of it, to an allocation history."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ..errors import SnapshotError
from .category import category_named
from .model import AllocationHistory, Block, DeviceHistory, Event, Frame, Segment, Stack


def read_snapshot(path: str | Path) -> AllocationHistory:
    """The history in a file that ``torch.cuda.memory._dump_snapshot`` wrote.

    Nothing in the file is executed: a pickle that names a class or a function is refused.

    Args:
        path: of the file.

    Raises:
        SnapshotError: the file cannot be read, is no pickle or holds no snapshot; the message
            says which.
    """
    try:
        with open(path, "rb") as file, _no_garbage_collection():
            snapshot = _DataUnpickler(file).load()
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror or error}") from None
    except EOFError:
        raise SnapshotError(f"{path} is cut off: its pickle has no end") from None
    except _ForbiddenNameError as error:
        raise SnapshotError(
            f"{path} is not a memory snapshot: its pickle wants {error}, and a snapshot is plain "
            "data; nothing of it was executed"
        ) from None
    except Exception as error:  # a pickle of anything can fail in any way
        raise SnapshotError(
            f"{path} is not a memory snapshot: it cannot be read as a pickle ({_first_line(error)})"
        ) from None
    try:
        with _no_garbage_collection():
            return history_of(snapshot)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def history_of(snapshot: Any) -> AllocationHistory:
    """The history in a snapshot.

    Args:
        snapshot: what ``torch.cuda.memory._snapshot()`` returns.

    Raises:
        SnapshotError: it is something else.
    """
    if isinstance(snapshot, list):
        raise SnapshotError(
            "this is what torch.cuda.memory_snapshot() returns, which has no history: record it "
            "with torch.cuda.memory._record_memory_history() and _dump_snapshot()"
        )
    if not isinstance(snapshot, Mapping) or not {"segments", "device_traces"} <= snapshot.keys():
        raise SnapshotError(
            "this is not a snapshot of torch.cuda.memory._snapshot(): segments and device_traces "
            "are missing"
        )
    stacks = _Stacks()
    try:
        devices = [
            DeviceHistory(
                device,
                [_event(entry, stacks) for entry in trace],
                [_segment(one, stacks) for one in snapshot["segments"] if one["device"] == device],
            )
            for device, trace in enumerate(snapshot["device_traces"])
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(
            f"an entry of the snapshot is not as PyTorch writes it ({type(error).__name__}: "
            f"{_first_line(error)})"
        ) from None
    return AllocationHistory(devices, stacks.all, dict(snapshot.get("allocator_settings") or {}))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of new dictionaries would each be searched for cycles several times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _ForbiddenNameError(Exception):
    """A pickle wants a class or a function."""


class _DataUnpickler(pickle.Unpickler):
    """Reads plain data only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _ForbiddenNameError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 - pickle gives it
        raise _ForbiddenNameError("an object from elsewhere")


class _Stacks:
    """Stacks by index; a snapshot shares the lists of frames, so that each is read once."""

    def __init__(self) -> None:
        self.all: list[Stack] = [()]
        self._by_stack: dict[Stack, int] = {(): 0}
        self._by_list: dict[int, tuple[Sequence[Any], int]] = {}
        self._frames: dict[int, tuple[Mapping[str, Any], Frame]] = {}

    def index_of(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        """Index of a stack."""
        if not frames:
            return 0
        known = self._by_list.get(id(frames))
        if known is None:
            stack = tuple(self._frame(frame) for frame in frames)
            index = self._by_stack.setdefault(stack, len(self.all))
            if index == len(self.all):
                self.all.append(stack)
            known = self._by_list[id(frames)] = (frames, index)
        return known[1]

    def _frame(self, frame: Mapping[str, Any]) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            read = Frame(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
            known = self._frames[id(frame)] = (frame, read)
        return known[1]


def _event(entry: Mapping[str, Any], stacks: _Stacks) -> Event:
    action = entry["action"]
    return Event(
        action,
        entry["device_free" if action == "oom" else "addr"],
        entry["size"],
        entry["stream"],
        entry.get("time_us", 0),
        stacks.index_of(entry.get("frames")),
        stacks.index_of(entry.get("forward_frames")),
        category_named(entry.get("category")),
        str(entry.get("module", "")),
    )


def _segment(segment: Mapping[str, Any], stacks: _Stacks) -> Segment:
    blocks = []
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            frames = block.get("frames")
            requested = block.get("requested_size", block["size"])
            stack = stacks.index_of(frames) if frames else None
            blocks.append(
                Block(
                    address,
                    block["size"],
                    requested,
                    stack,
                    stacks.index_of(block.get("forward_frames")),
                    category_named(block.get("category")),
                    str(block.get("module", "")),
                )
            )
        address += block["size"]
    return Segment(
        segment["address"],
        segment["total_size"],
        bool(segment.get("is_expandable", False)),
        tuple(blocks),
        segment.get("stream", 0),
        segment["segment_type"] == "small" if "segment_type" in segment else None,
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
