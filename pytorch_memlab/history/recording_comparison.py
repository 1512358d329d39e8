"""A recording of a GPU beside a simulation of its program: event by event, by line, and peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from operator import eq
from typing import Final, NamedTuple

from .._common.frames.user_code import base_name, is_of_user
from .holders import charged_frame
from .model import AllocationHistory, Event
from .peak import counters_of, settings_of

_WINDOW: Final = 400
"""How many requests of each stream are looked at for where both go on alike."""

_BEGINNING: Final = 32
"""How many requests of a recording tell where in its program it begins."""


class Request(NamedTuple):
    """An allocation or a free, as two allocators have it in common."""

    action: str  # ``alloc`` or ``free_completed``
    size: int  # the bytes requested


class FileLine(NamedTuple):
    """A line of a program, on whichever machine it ran."""

    file: str  # name of the file without its folder
    number: int


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """Requests in a row that one of the two does not have."""

    recorded: tuple[Event, ...]
    simulated: tuple[Event, ...]
    # the line of the program that made the first of them
    line: FileLine | None
    index: int  # how many requests of the recording come before

    @property
    def nbytes(self) -> int:
        """Bytes that the simulation allocates more than the GPU did."""
        return _allocated(self.simulated) - _allocated(self.recorded)


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest bytes of an allocator."""

    active: int
    reserved: int


@dataclass(frozen=True, slots=True)
class LineBytes:
    """The bytes that a line allocated, over all events."""

    line: FileLine | None  # None for what no line of the program made
    recorded: int
    simulated: int


@dataclass(frozen=True, slots=True)
class RequestComparison:
    """The requests of a GPU beside those of its simulation."""

    device: int
    equal: int  # requests of the same size in the same order
    total: int  # requests of the longer one
    differences: tuple[RequestDifference, ...]
    recorded: Peaks
    simulated: Peaks
    lines: tuple[LineBytes, ...]  # that differ, the largest difference first
    # requests of the simulation before the recording begins and after it ends
    before: int = 0
    after: int = 0

    @property
    def is_equal(self) -> bool:
        return not self.differences and self.recorded == self.simulated


class Stream:
    """The requests of one GPU."""

    def __init__(self, history: AllocationHistory, device: int) -> None:
        device_history = history.of_device(device)
        self._log, self._stacks = device_history.events, history.stacks
        self.places: list[int] = []
        """The index of the event of each request."""
        self.requests: list[Request] = []
        self._made_by: list[int | None] = []
        in_use: dict[int, int] = {}
        for index, (action, address, size, _) in enumerate(device_history.events.changes()):
            if action == "alloc":
                in_use[address] = index
                self._made_by.append(index)
            elif action == "free_completed":
                self._made_by.append(in_use.pop(address, None))
            else:
                continue
            self.places.append(index)
            self.requests.append(Request(action, size))
        self._active, self._reserved = counters_of(device_history, settings_of(history.settings))

    def peaks(self, begin: int, end: int) -> Peaks:
        """The highest bytes from before one request until before another one."""
        first = self.places[begin] if begin < len(self.places) else len(self._log)
        last = self.places[end] if end < len(self.places) else len(self._log)
        window = slice(first, last + 1)
        return Peaks(max(self._active[window]), max(self._reserved[window]))

    def events(self, begin: int, end: int) -> tuple[Event, ...]:
        return tuple(self._log[self.places[index]] for index in range(begin, end))

    def line(self, request: int) -> FileLine | None:
        """The line that allocated the block of a request."""
        made_by = self._made_by[request]
        if made_by is None:
            return None
        frame, _ = charged_frame(self._log[made_by], self._stacks)
        return (
            FileLine(base_name(frame.filename), frame.line) if is_of_user(frame.filename) else None
        )

    def bytes_by_line(self, begin: int, end: int) -> Counter[FileLine | None]:
        sizes: Counter[FileLine | None] = Counter()
        for request in range(begin, end):
            if self.requests[request].action == "alloc":
                sizes[self.line(request)] += self.requests[request].size
        return sizes


def compare(
    recorded: AllocationHistory,  # of a GPU; it may begin and end anywhere in the program
    simulated: AllocationHistory,  # from the first allocation of the program on
    device: int = 0,  # index of the GPU, in both
    *,
    is_whole: bool = False,  # the recording is of the whole program too
) -> RequestComparison:
    """Compare what a GPU recorded with a simulation of the whole program."""
    # Raises LookupError if one of them has no such device.
    gpu, ours = Stream(recorded, device), Stream(simulated, device)
    begin = 0 if is_whole else beginning_in(ours.requests, gpu.requests)
    runs = list(_runs(gpu.requests, ours.requests[begin:]))
    end = len(ours.requests)
    if runs and not is_whole and runs[-1].recorded.start == runs[-1].recorded.stop:
        end = begin + runs.pop().simulated.start
    differences = []
    for theirs, mine in runs:
        wanted = gpu.events(theirs.start, theirs.stop)
        made = ours.events(begin + mine.start, begin + mine.stop)
        line = ours.line(begin + mine.start) if made else gpu.line(theirs.start)
        differences.append(RequestDifference(wanted, made, line, theirs.start))
    missing = sum(len(run.recorded) for run in differences)
    return RequestComparison(
        device,
        len(gpu.requests) - missing,
        max(len(gpu.requests), end - begin),
        tuple(differences),
        gpu.peaks(0, len(gpu.requests)),
        ours.peaks(begin, end),
        _lines(gpu.bytes_by_line(0, len(gpu.requests)), ours.bytes_by_line(begin, end)),
        before=begin,
        after=len(ours.requests) - end,
    )


def equal_in_order(requests: Sequence[Request], other: Sequence[Request]) -> int:
    """The number of requests that two streams share in order.

    >>> stream = [Request("alloc", 1), Request("free_completed", 1)]
    >>> equal_in_order(stream, [stream[0], Request("alloc", 2), stream[1]])
    2
    """
    return len(requests) - sum(len(run.recorded) for run in _runs(requests, other))


def beginning_in(program: Sequence[Request], recording: Sequence[Request]) -> int:
    """The place in a program at which a recording begins, or the one that is most like it.

    >>> program = [Request("alloc", size) for size in (1, 2, 3, 2, 4)]
    >>> beginning_in(program, program[1:3]), beginning_in(program, program[3:])
    (1, 3)
    """
    head = list(recording[:_BEGINNING])
    length = len(head)
    if not length:
        return 0
    starts = [
        start
        for start in range(len(program))
        if program[start] == head[0] and program[start : start + length] == head
    ]
    if not starts:
        scores = [
            sum(map(eq, program[start : start + length], head)) for start in range(len(program))
        ]
        return max(range(len(program)), key=scores.__getitem__, default=0)
    best, most = 0, -1
    for start in starts:
        alike = _equal_from(program, start, recording, 0)
        if alike > most:
            best, most = start, alike
        if alike == len(recording):
            break
    return best


class _Run(NamedTuple):
    recorded: range
    simulated: range


def _runs(requests: Sequence[Request], other: Sequence[Request]) -> Iterator[_Run]:
    """The ranges of two streams between what they share in order."""
    first = second = 0
    while first < len(requests) or second < len(other):
        alike = _equal_from(requests, first, other, second)
        first, second = first + alike, second + alike
        left = list(requests[first : first + _WINDOW])
        right = list(other[second : second + _WINDOW])
        if not left or not right:
            if left or right:
                yield _Run(range(first, len(requests)), range(second, len(other)))
            return
        blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        at, also = 0, 0
        for block in blocks[:-1]:
            if block.a > at or block.b > also:
                yield _Run(
                    range(first + at, first + block.a), range(second + also, second + block.b)
                )
            at, also = block.a + block.size, block.b + block.size
        if not at:
            at, also = len(left), len(right)
            yield _Run(range(first, first + at), range(second, second + also))
        first, second = first + at, second + also


def _equal_from(
    requests: Sequence[Request], first: int, other: Sequence[Request], second: int
) -> int:
    """Count the requests in a row that are alike from two places on."""
    alike = 0
    most = min(len(requests) - first, len(other) - second)
    while alike < most and requests[first + alike] == other[second + alike]:
        alike += 1
    return alike


def _lines(
    recorded: Counter[FileLine | None], simulated: Counter[FileLine | None]
) -> tuple[LineBytes, ...]:
    rows = [
        LineBytes(line, recorded[line], simulated[line])
        for line in {**recorded, **simulated}
        if recorded[line] != simulated[line]
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.simulated - row.recorded)))


def _allocated(events: Sequence[Event]) -> int:
    return sum(event.size for event in events if event.action == "alloc")
