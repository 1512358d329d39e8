"""From ``torch.cuda.memory._snapshot()``, or a file of it, to an allocation history."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

from .._common.process.garbage_collection import no_garbage_collection
from .._common.text.near_files import why_not_opened
from ..errors import SnapshotError
from ..simulation.allocator.blocks import DEFAULT_POOL
from .generated_code import frames_of, in_region
from .model import (
    AllocationHistory,
    DeviceHistory,
    EventLog,
    PoolId,
    Segment,
    Stack,
    UsedBlock,
    category_named,
)
from .snapshot_pickle import EVENT, ForbiddenCodeError, PickleReader, StackReference

_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 512
_DUMP: Final = "a snapshot is what torch.cuda.memory._dump_snapshot() writes"
_MOST_EXPANSION: Final = 100
"""Times its size that a compressed file may have; snapshots have some twenty."""


def read_snapshot(path: str | Path) -> AllocationHistory:
    """The history in a file that ``torch.cuda.memory._dump_snapshot`` wrote."""
    # Nothing in the file is executed: a pickle that names a class or a function is refused.
    stacks = Stacks()
    log = EventLog()
    try:
        with _open(path) as file, no_garbage_collection():
            snapshot = PickleReader(file, _Events(log, stacks)).read()
    except OSError as error:
        reason = why_not_opened(error, str(path))
        raise SnapshotError(f"cannot read {path}: {reason}") from None
    except EOFError:
        raise SnapshotError(f"{path} is cut off: its pickle has no end") from None
    except ForbiddenCodeError as error:
        raise SnapshotError(
            f"{path} is not a memory snapshot: its pickle wants {error}, and a snapshot is plain "
            "data; nothing of it was executed"
        ) from None
    except _EntryError as error:
        raise SnapshotError(f"{path}: {error}") from None
    except SnapshotError:
        raise
    except Exception as error:  # a pickle of anything can fail in any way
        raise SnapshotError(
            f"{path} is not a memory snapshot: it cannot be read as a pickle ({_first_line(error)})"
        ) from None
    try:
        with no_garbage_collection():
            return _history(snapshot, stacks, log)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def history_of(snapshot: Any) -> AllocationHistory:
    return _history(snapshot, Stacks(), EventLog())


def _history(snapshot: Any, stacks: Stacks, read: EventLog) -> AllocationHistory:
    if isinstance(snapshot, list):
        raise SnapshotError(
            "this is what torch.cuda.memory_snapshot() returns, which has no history: record it "
            "with torch.cuda.memory._record_memory_history() and _dump_snapshot()"
        )
    if not isinstance(snapshot, Mapping) or "segments" not in snapshot:
        raise SnapshotError(
            "this is not a snapshot of torch.cuda.memory._snapshot(): segments and device_traces "
            "are missing"
        )
    try:
        # PyTorch 2.0 and earlier may write none.
        traces = list(snapshot.get("device_traces") or ())
        logs, begin = [], 0
        for trace in traces:
            logs.append(_log_of(trace, read, begin, stacks))
            begin += len(trace)
        segments: dict[int, list[Segment]] = {}
        for segment_data in snapshot["segments"]:
            segments.setdefault(segment_data["device"], []).append(segment_of(segment_data, stacks))
        if any(not 0 <= device < _MOST_DEVICES for device in segments):
            raise ValueError(f"a segment of GPU {max(segments)}")
        logs += [EventLog() for _ in range(len(logs), max(segments, default=-1) + 1)]
        devices = [
            DeviceHistory(device, log, segments.get(device, [])) for device, log in enumerate(logs)
        ]
    except (_EntryError, *_FAILURES) as error:
        raise SnapshotError(str(_entry_error(error))) from None
    return AllocationHistory(devices, stacks.all, dict(snapshot.get("allocator_settings") or {}))


def _log_of(trace: Sequence[Any], read: EventLog, begin: int, stacks: Stacks) -> EventLog:
    """The events of one GPU: those that were read, from one on, or else the entries of a trace."""
    if len(trace) == len(read) and begin == 0 and all(entry is EVENT for entry in trace):
        return read
    if trace and trace[0] is EVENT:
        if not all(entry is EVENT for entry in trace) or begin + len(trace) > len(read):
            raise ValueError("events and other things in one list")
        return read.part(begin, begin + len(trace))
    log = EventLog()
    events = _Events(log, stacks)
    for entry in trace:
        events.add(entry)
    return log


_FAILURES = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError)
"""Errors that an entry may cause that PyTorch did not write."""

_MOST_DEVICES: Final = 1024


class _EntryError(Exception):
    """An entry of a snapshot is not as PyTorch writes it."""


def _entry_error(error: Exception) -> Exception:
    if isinstance(error, _EntryError):
        return error
    return _EntryError(
        f"an entry of the snapshot is not as PyTorch writes it ({type(error).__name__}: "
        f"{_first_line(error)})"
    )


class _Events:
    """Takes the events of a pickle into a log."""

    def __init__(self, log: EventLog, stacks: Stacks) -> None:
        self._log = log
        self._stacks = stacks
        self._adders: dict[tuple[str, ...], Callable[[list[Any]], None]] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        keys = tuple(entry)
        add = self._adders.get(keys)
        if add is None:
            add = self._adders[keys] = self.adder(keys)
        add(list(entry.values()))

    def adder(self, keys: Sequence[str]) -> Callable[[list[Any]], None]:
        place = {key: number for number, key in enumerate(keys)}
        try:
            address = place["device_free"] if "device_free" in place else place["addr"]
            action, size, stream = place["action"], place["size"], place["stream"]
        except KeyError as error:
            raise _entry_error(error) from None
        # Behind the values stand a number and a text, for what an event does not have.
        number, text = len(keys), len(keys) + 1
        time, frames = place.get("time_us", number), place.get("frames", number)
        forward = place.get("forward_frames", number)
        category, module = place.get("category", text), place.get("module", text)
        pool = place.get("pool_id", number)
        context, metadata = place.get("compile_context", text), place.get("user_metadata", text)
        append, index_of, index_in = self._log.append, self._stacks.index_of, self._stacks.index_in
        pools, default = self._log.pools, DEFAULT_POOL

        def add(values: list[Any]) -> None:
            values += (0, "")
            try:
                pool_id = values[pool]
                # Compared first: most events are of the default pool.
                if pool_id and pool_id != default and (private := private_pool(pool_id)):
                    pools[len(self._log)] = private
                append(
                    str(values[action]),
                    values[address],
                    values[size],
                    values[stream],
                    values[time],
                    index_in(index_of(values[frames]), values[context], values[metadata]),
                    index_of(values[forward]),
                    category_named(values[category]),
                    str(values[module]),
                )
            except _FAILURES as error:
                raise _entry_error(error) from None

        return add

    def index_of(self, frames: Any) -> int:
        try:
            return self._stacks.index_of(frames)
        except _FAILURES as error:
            raise _entry_error(error) from None


_NO_REGION: Final = ("N/A", "")


class Stacks:
    """Stacks by index; a snapshot shares the lists of frames, so that each is read once."""

    def __init__(self) -> None:
        self.all: list[Stack] = [()]
        self._by_stack: dict[Stack, int] = {(): 0}
        self._by_list: dict[int, tuple[Sequence[Any], int]] = {}
        self._by_context: dict[tuple[int, str, str], int] = {}
        self._frames: dict[int, tuple[Mapping[str, Any], Stack]] = {}

    def index_of(self, frames: Any) -> int:
        """Index of a stack: of a list of frames, or one that was read already."""
        if type(frames) is StackReference:
            return frames.stack
        if not frames:
            return 0
        numbered = self._by_list.get(id(frames))
        if numbered is None:
            index = self._number(tuple(chain.from_iterable(map(self._frames_of, frames))))
            numbered = self._by_list[id(frames)] = (frames, index)
        return numbered[1]

    def index_in(self, index: int, context: Any, metadata: Any) -> int:
        """Index of a stack with the compiled region and the metadata of its event."""
        if not metadata and context in _NO_REGION:
            return index
        key = index, str(context), str(metadata)
        number = self._by_context.get(key)
        if number is None:
            number = self._by_context[key] = self._number(in_region(self.all[index], *key[1:]))
        return number

    def _number(self, stack: Stack) -> int:
        index = self._by_stack.setdefault(stack, len(self.all))
        if index == len(self.all):
            self.all.append(stack)
        return index

    def _frames_of(self, frame: Mapping[str, Any]) -> Stack:
        translated = self._frames.get(id(frame))
        if translated is None:
            translated = self._frames[id(frame)] = (frame, frames_of(frame))
        return translated[1]


def segment_of(segment: Mapping[str, Any], stacks: Stacks) -> Segment:
    blocks = []
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            # Before PyTorch 2.2 a block had a list of those that had the same address.
            made: Mapping[str, Any] = next(iter(block.get("history") or ()), {})
            frames = block.get("frames") or made.get("frames")
            requested = block.get("requested_size") or made.get("real_size") or block["size"]
            stack = stacks.index_of(frames) if frames else None
            blocks.append(
                UsedBlock(
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
        private_pool(segment.get("segment_pool_id") or DEFAULT_POOL),
    )


def private_pool(pool_id: Sequence[int]) -> PoolId | None:
    """The id of a private pool; None for the default pool, ValueError if it is not two numbers."""
    first, second = map(int, pool_id)
    return (first, second) if first or second else None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def _open(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that may be compressed by gzip, and read its pickle."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        file.seek(0)
        if not head.startswith(_GZIP):
            _check(path, head)
            yield file
            return
        with gzip.open(file) as expanded:
            _check(path, expanded.read(_HEAD))
            expanded.seek(0)
            yield _Expanded(expanded, path, os.fstat(file.fileno()).st_size)  # type: ignore[misc]


class _Expanded:
    """A compressed file that does not expand to more than a snapshot would."""

    def __init__(self, file: gzip.GzipFile, path: str | Path, size: int) -> None:
        self._file = file
        self._path = path
        self._left = max(size, 2**16) * _MOST_EXPANSION

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SnapshotError(
                f"{self._path} is not a memory snapshot: it expands to more than "
                f"{_MOST_EXPANSION} times its size"
            )
        return data


def _check(path: str | Path, head: bytes) -> None:
    """Refuse what is no pickle of protocol 2 or newer."""
    if head.startswith(b"\x80"):
        return
    if not head:
        raise SnapshotError(f"{path} is empty: {_DUMP}")
    raise SnapshotError(f"{path} is not a memory snapshot: {_kind(path, head)}")


def _kind(path: str | Path, head: bytes) -> str:
    text = head.lstrip()
    if text.startswith((b"{", b"[")):
        if b'"format"' in text:
            return f"it is a saved profile, which pytorch-memlab show {path} shows"
        return f"it is JSON, and {_DUMP}"
    if text.startswith(b"<"):
        return f"it is a web page, and {_DUMP}"
    if head.startswith(b"PK"):
        return f"it is a zip file, such as torch.save() writes, and {_DUMP}"
    return f"it is no pickle of protocol 2 or newer, and {_DUMP}"
