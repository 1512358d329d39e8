"""An allocation history as plain data: what an allocator did, and on which stacks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, overload

from .._common.text.prose_size import prose_size
from ..simulation.allocator.blocks import PoolId as PoolId


class Category(StrEnum):
    """The category of a block; equal to its name in a report."""

    number: int  # its place among the categories

    PARAMETERS = "parameters"  # of modules, also those that only an optimizer has
    GRADIENTS = "gradients"  # of parameters and of other leaves
    OPTIMIZER_STATE = "optimizer state"  # what optimizers keep between steps
    BUFFERS = "buffers"  # of modules
    # what the forward pass made and autograd keeps until the backward pass
    SAVED = "activations saved for backward"
    TEMPORARIES = "temporaries"  # what is freed before the pass that made it ends
    WORKSPACES = "workspaces"  # what kernels take next to their results
    OTHERS = "inputs and other tensors"  # tensors that are none of these, such as inputs
    UNKNOWN = "unknown"  # not known


for _number, _category in enumerate(Category):
    _category.number = _number

_BY_NAME = {category.value: category for category in Category}


def category_named(name: object) -> Category:
    """The category of a name that a file has; ``UNKNOWN`` for any other.

    >>> category_named("gradients"), category_named(7)
    (<Category.GRADIENTS: 'gradients'>, <Category.UNKNOWN: 'unknown'>)
    """
    return _BY_NAME.get(name, Category.UNKNOWN) if isinstance(name, str) else Category.UNKNOWN


_CATEGORIES: Final = tuple(Category)
_MOST_ACTIONS: Final = 255

HOST: Final = -1
"""Stands for the host where the index of a GPU is expected, also in files."""


class Frame(NamedTuple):
    """A frame of a Python stack."""

    filename: str  # of the source file
    line: int  # number of the line
    name: str  # of the function


Stack = tuple[Frame, ...]
"""Frames, innermost first; empty if nothing is known."""


class Event(NamedTuple):
    """One thing that an allocator did."""

    action: str  # as PyTorch's memory history names it, such as ``alloc`` or ``free_completed``
    address: int  # of the block or segment; for ``oom`` the bytes free on the GPU
    size: int  # bytes requested for a block; bytes of a segment or its pages
    stream: int  # that it belongs to
    time: int  # in microseconds since the epoch
    stack: int  # index of its stack in the history
    # of an allocation in the backward pass, index of the stack of the forward op; 0 if there is
    # none or it is not known
    forward: int = 0
    category: Category = Category.UNKNOWN  # of an allocation, what the block is to the program
    # of an allocation, path of the ``nn.Module`` that runs, such as ``GPT.blocks.3.attn``; of one
    # in the backward pass that of the forward op; empty if there is none or it is not known
    module: str = ""


class _Names(list[str]):
    """Names by their numbers, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_of(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self))
        if number == len(self):
            self.append(name)
        return number


class EventLog(Sequence[Event]):
    """The events of one allocator in columns: a tenth of the memory of an object for each."""

    # Categories, actions and modules are numbers: ``Category.number``, ``number_of`` an action, and
    # that of ``module_names``.

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.action_names, self.module_names = _Names(), _Names()
        self.module_names.number_of("")
        self.actions, self.categories = array("B"), array("B")
        self.addresses, self.sizes = array("Q"), array("Q")
        self.streams, self.times = array("q"), array("q")
        self.stacks, self.forwards, self.modules = array("i"), array("i"), array("i")
        # of the events of private pools, as far as they are recorded
        self.pools: dict[int, PoolId] = {}
        for event in events:
            self.append(*event)

    def append(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        time: int,
        stack: int,
        forward: int = 0,
        category: Category = Category.UNKNOWN,
        module: str = "",
    ) -> None:
        self.actions.append(self.number_of(action))
        self.addresses.append(address)
        self.sizes.append(size)
        self.streams.append(stream)
        self.times.append(time)
        self.stacks.append(stack)
        self.forwards.append(forward)
        self.categories.append(category.number)
        self.modules.append(self.module_names.number_of(module))

    def extend(self, **fields: Sequence[int]) -> None:
        """Add events: of each field (``actions``, ``addresses``, ...) the values, in order."""
        for name, values in fields.items():
            column: array[int] = getattr(self, name)
            column.extend(array(column.typecode, values))  # twice as fast as without the array

    @classmethod
    def of_columns(
        cls,
        names: Sequence[str],  # those that these fields have the indexes of
        # the fields of some events, then those of the next ones
        columns: Iterable[dict[str, Sequence[int]]],
    ) -> EventLog:
        """A log of fields as ``extend`` takes them, but names for actions, categories, modules."""
        log = cls()
        numbers_of: dict[str, Callable[[str], int]] = {
            "actions": log.number_of,
            "modules": log.module_names.number_of,
            "categories": lambda name: category_named(name).number,
        }
        for fields in columns:
            for field_name, number_of in numbers_of.items():
                places = fields[field_name]
                numbers = {place: number_of(names[place]) for place in dict.fromkeys(places)}
                fields[field_name] = [numbers[place] for place in places]
            log.extend(**fields)
        return log

    def changes(self) -> Iterator[tuple[str, int, int, int]]:
        """Action, address, size and stream of each event: whole events take longer to make."""
        names = map(self.action_names.__getitem__, self.actions)
        return zip(names, self.addresses, self.sizes, self.streams, strict=True)

    def indexes(self, action: str) -> list[int]:
        if action not in self.action_names:
            return []
        number = self.number_of(action)
        return [
            index for index, action_number in enumerate(self.actions) if action_number == number
        ]

    def set_category(self, index: int, category: Category) -> None:
        self.categories[index] = category.number

    def part(self, start: int, stop: int) -> EventLog:
        """The events from one index up to another, as a log."""
        part = EventLog()
        for name, column in vars(self).items():
            setattr(part, name, column[start:stop] if isinstance(column, array) else column)
        part.pools = {
            index - start: pool_id for index, pool_id in self.pools.items() if start <= index < stop
        }
        return part

    def number_of(self, action: str) -> int:
        number = self.action_names.number_of(action)
        if number == _MOST_ACTIONS:
            raise ValueError(f"more than {_MOST_ACTIONS} kinds of events")
        return number

    def __len__(self) -> int:
        return len(self.actions)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return list(self._events(index))
        number = range(len(self))[index]
        return next(self._events(slice(number, number + 1)))

    def __iter__(self) -> Iterator[Event]:
        return self._events(slice(None))

    def _events(self, part: slice) -> Iterator[Event]:
        return map(
            Event,
            map(self.action_names.__getitem__, self.actions[part]),
            self.addresses[part],
            self.sizes[part],
            self.streams[part],
            self.times[part],
            self.stacks[part],
            self.forwards[part],
            map(_CATEGORIES.__getitem__, self.categories[part]),
            map(self.module_names.__getitem__, self.modules[part]),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(Event.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EventLog({len(self):,} events)"


@dataclass(frozen=True, slots=True)
class UsedBlock:
    """A block in use."""

    address: int  # where it begins
    size: int  # its bytes
    requested: int  # bytes that the program asked for
    # index of the stack of its allocation; None for one that the history does not have
    stack: int | None
    forward: int = 0  # as an event has it
    category: Category = Category.UNKNOWN  # as an event has it
    module: str = ""  # as an event has it


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment at one moment."""

    address: int  # where it begins
    size: int  # its bytes
    is_expandable: bool  # whether it is a range of pages of an expandable segment
    blocks: tuple[UsedBlock, ...]  # those in use
    stream: int = 0  # that it serves
    # whether it serves requests of up to 1 MiB; None if it is not known
    is_small: bool | None = None
    pool_id: PoolId | None = None  # the private pool that it belongs to


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """The events of one GPU's allocator."""

    device: int  # index of the GPU; ``HOST`` for the host
    events: EventLog  # in order
    segments: Sequence[Segment]  # those at the end
    # those at the beginning; None if they have to follow from the rest
    initial: Sequence[Segment] | None = None
    # whether blocks are larger than what was requested, as a caching allocator's; False for the
    # storages of the host
    is_rounded: bool = True
    # how many events came before these and were dropped, as more are not kept; None if there may
    # be some, and nothing tells how many
    dropped: int | None = 0
    first_states: dict[object, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Results of ``first_state``, by the settings of the allocator."""

    def __repr__(self) -> str:
        """The number of events, and the bytes reserved at the end."""
        reserved = prose_size(sum(segment.size for segment in self.segments))
        return (
            f"<{type(self).__name__} of {device_name(self.device)}: {len(self.events):,} events,"
            f" {reserved} reserved at the end>"
        )


@dataclass(frozen=True, slots=True)
class AllocationHistory:
    """The events of all allocators of a process."""

    devices: Sequence[DeviceHistory]  # of each GPU
    stacks: Sequence[Stack]  # the stacks that events and blocks name by their index
    # of the allocators, as a snapshot has them
    settings: dict[str, object] = field(default_factory=dict)
    # when steps of optimizers ended, in microseconds as events have them; None if it is not known
    steps: Sequence[int] | None = None

    def __repr__(self) -> str:
        """The number of events on each device."""
        devices = [
            f"{device_name(device.device)} ({len(device.events):,} events)"
            for device in self.devices
        ]
        return f"<{type(self).__name__} of {', '.join(devices) or 'no device'}>"

    def used_devices(self) -> list[int]:
        """The indexes of the devices that have events or segments."""
        return [device.device for device in self.devices if device.events or device.segments]

    def of_device(self, device: int) -> DeviceHistory:
        """The history of one device, by its index and not by its place."""
        for device_history in self.devices:
            if device_history.device == device:
                return device_history
        raise LookupError(f"the history has no device {device}")


def device_name(device: int, run: str = "") -> str:
    """The name of a device in a report, after the label of its run in a merged profile.

    >>> device_name(1), device_name(HOST), device_name(1, "rank0")
    ('cuda:1', 'cpu', 'rank0 cuda:1')
    """
    name = "cpu" if device == HOST else f"cuda:{device}"
    return f"{run} {name}" if run else name
