"""Memory that grows with every step of a program, and the step at which a GPU is full.

Note [Steps that are repeated]
The allocations of the last step are replayed again and again behind the recorded ones, with the
memory of the GPU. A block that a step frees is the one that stands at the same place of this step,
or of the step before it. So only steps that make the same requests in the same order can be
repeated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from ..history.model import AllocationHistory, EventLog, Stack
from ..history.replay import replay
from .settled import LONGEST_CYCLE, Repeated

_STEPS_IN_A_ROW: Final = 3
"""Steps that leave more memory than the one before, until they count as growth."""
_MOST_STEPS: Final = 100_000
_MOST_EVENTS: Final = 1_000_000
"""Events to replay; a slow growth on a large GPU ends there."""
_UNIT: Final = 512
"""Bytes of which blocks are multiples (c10/core/AllocatorConfig.h: kMinBlockSize)."""
_NEW_ADDRESSES: Final = 1 << 60
"""Above all addresses of a recording."""


@dataclass(frozen=True, slots=True)
class LoopGrowth:
    """Memory that every step, or every iteration of a loop, leaves."""

    nbytes: int  # of one step, or of one cycle of steps
    stack: Stack  # of the allocation that leaves most
    # number of the step that finds no room, counted from 1; None if it is not reached
    last_step: int | None
    cycle: int  # the steps that leave so much
    repeated: Repeated  # the steps

    @property
    def is_over(self) -> bool:
        """True if the program ends before it finds no room."""
        total = self.repeated.total
        return total is not None and (self.last_step is None or self.last_step > total)

    @property
    def later(self) -> int:
        """Bytes that the steps leave that were not run; 0 if their number is not known."""
        return (self.repeated.skipped or 0) * self.nbytes // self.cycle


def growth_of(
    history: AllocationHistory,
    device: int,  # index of the GPU in the history
    repeated: Repeated,  # the steps, or the iterations of a loop, that may grow
    *,
    capacity: int,  # bytes of the GPU
    taken: int,  # bytes of it that the allocator does not get
) -> LoopGrowth | None:
    """The growth of a program on a GPU; None if its last steps do not grow alike."""
    log = history.of_device(device).events
    even = _even_steps(log, repeated)
    if even is None:
        return None
    cycle, steps, left = even
    nbytes, end = left.total(), steps[-1].end
    events = _repeated(steps[-2], steps[-1])
    count = min(capacity // nbytes + 2, _MOST_STEPS, _MOST_EVENTS // len(events))
    longer = _continued(log, steps[-1], events, count)
    devices = [
        replace(device_history, events=longer)
        if device_history.device == device
        else device_history
        for device_history in history.devices
    ]
    result = replay(replace(history, devices=devices), device, capacity=capacity, taken=taken)
    failure, last_step = result.out_of_memory, None
    if failure is not None and failure.index >= end:
        whole, rest = divmod(failure.index - end, len(events))
        last_step = len(repeated.ends) + whole * cycle + 1 + rest * cycle // len(events)
    [(stack, _)] = left.most_common(1)
    return LoopGrowth(nbytes, history.stacks[stack], last_step, cycle, repeated)


def growing_loops(
    history: AllocationHistory, device: int, loops: Sequence[Repeated]
) -> list[Repeated]:
    """The loops that grow by themselves, each with the steps until its memory is freed."""
    # Note [Loops within loops]
    # The loop within a loop ends early many times. What its steps leave may stay: then its first
    # end counts, for all steps of all loops. Or it is gone when it begins again, such as a list of
    # the losses of an epoch: then each end counts, for the rest of that loop alone.
    log = history.of_device(device).events
    ends = {loop.nest: loop.ends[-1] for loop in loops if loop.are_steps}
    repeated: list[Repeated] = []
    staying: dict[int, bool] = {}
    for ended in loops:
        loop, nest = ended, ended.nest
        if staying.get(nest):
            continue
        if nest and loop.are_steps:
            staying.setdefault(nest, _stays(log, loop, ends[nest]))
            if not staying[nest]:
                here = loop.skipped_here
                total = None if here is None else len(loop.ends) + here
                loop = replace(loop, total=total, skipped=here)
        repeated.append(loop)
    return repeated


def _stays(log: EventLog, loop: Repeated, until: int) -> bool:
    """True if what the first half of some steps left is there at a time, most of it."""
    times = [loop.ends[0], loop.ends[len(loop.ends) // 2], loop.ends[-1], until]
    begin, middle, end, last = (bisect_right(log.times, time) for time in times)
    early = sum(_Step(log, begin, middle).left_at(last).values())
    late = sum(_Step(log, middle, end).left_at(end).values())
    return early * 2 > late


def _even_steps(log: EventLog, repeated: Repeated) -> tuple[int, list[_Step], Counter[int]] | None:
    """The steps of a cycle, the last cycles, and what each leaves by stack; None if uneven."""
    times = repeated.ends
    longest = min(LONGEST_CYCLE, (len(times) - 2) // _STEPS_IN_A_ROW)
    for cycle in range(1, longest + 1):  # each so many steps are one
        ends = [bisect_right(log.times, time) for time in times[::-cycle]][::-1]
        steps = [_Step(log, *pair) for pair in pairwise(ends)][-_STEPS_IN_A_ROW - 1 :]
        if all(step.requests() == steps[0].requests() for step in steps):
            left = [step.left_at(ends[-1]) for step in steps[:-1]]
            return (cycle, steps, left[-1]) if all(sizes.total() for sizes in left) else None
    return None


def rise_to_the_end(
    history: AllocationHistory, device: int, loops: Sequence[Repeated]
) -> int | None:
    """Bytes by which the peak rises as loops run to their ends; None if that is not known."""
    log = history.of_device(device).events
    rises: list[_Rise] = []
    for loop in growing_loops(history, device, loops):
        even = _even_steps(log, loop)
        if even is None or loop.skipped is None:
            return None
        cycle, steps, _ = even
        first, end = steps[-1].first, steps[-1].end
        alive = dict(steps[-2].alive_at(end))
        nbytes = sum(-(-log.sizes[index] // _UNIT) * _UNIT for index in alive.values())
        more = loop.skipped * nbytes // cycle
        rises.append(_Rise(first, end, more, len(alive), set(alive)))
    sizes: dict[int, int] = {}
    in_use = recorded = whole = 0
    for index, (action, address) in enumerate(zip(log.actions, log.addresses, strict=True)):
        if log.action_names[action] == "alloc":
            sizes[address] = log.sizes[index]
            in_use += log.sizes[index]
            recorded = max(recorded, in_use)
            whole = max(whole, in_use + sum(rise.at(index) for rise in rises))
        elif log.action_names[action] == "free_completed":
            in_use -= sizes.pop(address, 0)
            for rise in rises:
                if index >= rise.end:
                    rise.kept.discard(address)
    return whole - recorded


@dataclass(frozen=True, slots=True)
class _Rise:
    """Memory that iterations of a loop leave that did not run, until most of it is freed."""

    begin: int  # index of the first event of the last iteration
    end: int
    nbytes: int
    blocks: int  # that the last iteration leaves
    kept: set[int]  # addresses of those of them that are not freed

    def at(self, index: int) -> int:
        return self.nbytes if index >= self.begin and len(self.kept) * 2 > self.blocks else 0


@dataclass(frozen=True, slots=True)
class _Step:
    """The events of one step of a recording."""

    log: EventLog
    first: int
    end: int

    def events(self, end: int | None = None) -> Iterator[tuple[int, str, int]]:
        """Index, action and address of each event, up to the end of the step or a later event."""
        log = self.log
        for index in range(self.first, self.end if end is None else end):
            yield index, log.action_names[log.actions[index]], log.addresses[index]

    def requests(self) -> list[int]:
        """The sizes of its allocations, in order."""
        return [self.log.sizes[index] for index, action, _ in self.events() if action == "alloc"]

    def left_at(self, end: int) -> Counter[int]:
        """Bytes that it allocated and that are in use at an event, by their stacks."""
        left = Counter[int]()
        for _, index in self.alive_at(end):
            left[self.log.stacks[index]] += self.log.sizes[index]
        return left

    def alive_at(self, end: int) -> Iterable[tuple[int, int]]:
        """Addresses that it allocated and that are in use at an event, with their allocations."""
        alive: dict[int, int] = {}
        for index, action, address in self.events(end):
            if action == "alloc" and index < self.end:
                alive[address] = index
            elif action in ("alloc", "free_completed"):
                alive.pop(address, None)
        return alive.items()

    def owners(self) -> dict[int, int]:
        """The addresses that are in use at its end, and which allocation of the step each is."""
        owners: dict[int, int] = {}
        made = 0
        for _, action, address in self.events():
            if action == "alloc":
                owners[address] = made
                made += 1
            elif action == "free_completed":
                owners.pop(address, None)
        return owners


class _Event(NamedTuple):
    """An event that is repeated."""

    recorded: int  # index of the recorded one
    place: int  # of its allocation among those of a step
    is_of_previous: bool  # whether the step before made that allocation


def _repeated(before: _Step, last: _Step) -> list[_Event]:
    """The events of the last step; those on memory of earlier steps happen once only."""
    owners = {address: (place, True) for address, place in before.owners().items()}
    events, made = [], 0
    for index, action, address in last.events():
        if action == "alloc":
            owners[address] = made, False
            events.append(_Event(index, made, is_of_previous=False))
            made += 1
        elif action in ("free_requested", "free_completed") and address in owners:
            events.append(_Event(index, *owners[address]))
            if action == "free_completed":
                del owners[address]
    return events


def _continued(log: EventLog, last: _Step, events: Sequence[_Event], count: int) -> EventLog:
    """A recording with its last step some more times, at addresses that no block has."""
    longer = log.part(0, last.end)
    previous = {place: address for address, place in last.owners().items()}
    address = _NEW_ADDRESSES
    for _ in range(count):
        current: dict[int, int] = {}
        for index, place, is_of_previous in events:
            action = log.action_names[log.actions[index]]
            if action == "alloc":
                address += 1
                current[place] = address
            at = previous.get(place) if is_of_previous else current[place]
            if at is not None:
                size, stream, stack = log.sizes[index], log.streams[index], log.stacks[index]
                longer.append(action, at, size, stream, 0, stack)
        previous = current
    return longer
