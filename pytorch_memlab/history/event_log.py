"""The events of one allocator in columns: a tenth of the memory that an object each would take."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, overload

from .category import Category
from .model import Event

_CATEGORIES: Final = tuple(Category)
_MOST_ACTIONS: Final = 255


class EventLog(Sequence[Event]):
    """Events in order; each is made when it is asked for.

    Categories, actions and modules are numbers: ``Category.number``, ``number_of`` an action, and
    ``module_number``.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.action_names: list[str] = []
        self.actions, self.categories = array("B"), array("B")
        self.addresses, self.sizes = array("Q"), array("Q")
        self.streams, self.times = array("q"), array("q")
        self.stacks, self.forwards, self.modules = array("i"), array("i"), array("i")
        self._action_numbers: dict[str, int] = {}
        self._module_names = [""]
        self._module_numbers = {"": 0}
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
        self.modules.append(self.module_number(module))

    def extend(self, **fields: Sequence[int]) -> None:
        """Add events: of each field (``actions``, ``addresses``, ...) the values, in order."""
        for name, values in fields.items():
            column: array[int] = getattr(self, name)
            column.extend(array(column.typecode, values))  # twice as fast as without the array

    def module_number(self, module: str) -> int:
        number = self._module_numbers.setdefault(module, len(self._module_names))
        if number == len(self._module_names):
            self._module_names.append(module)
        return number

    def changes(self) -> Iterator[tuple[str, int, int, int]]:
        """Action, address, size and stream of each event, for those who need no more of so many."""
        names = map(self.action_names.__getitem__, self.actions)
        return zip(names, self.addresses, self.sizes, self.streams, strict=True)

    def indexes(self, action: str) -> list[int]:
        number = self._action_numbers.get(action)
        if number is None:
            return []
        return [index for index, one in enumerate(self.actions) if one == number]

    def set_category(self, index: int, category: Category) -> None:
        self.categories[index] = category.number

    def with_stacks(self, number_of: Callable[[int], int]) -> EventLog:
        """The events, with other numbers for their stacks."""
        found = self.part(0, len(self))
        found.stacks = array("i", map(number_of, self.stacks))
        found.forwards = array("i", map(number_of, self.forwards))
        return found

    def part(self, start: int, stop: int) -> EventLog:
        """The events from one index up to another, as a log."""
        found = EventLog()
        for name, column in vars(self).items():
            setattr(found, name, column[start:stop] if isinstance(column, array) else column)
        return found

    def number_of(self, action: str) -> int:
        number = self._action_numbers.setdefault(action, len(self.action_names))
        if number == _MOST_ACTIONS:
            raise ValueError(f"more than {_MOST_ACTIONS} kinds of events")
        if number == len(self.action_names):
            self.action_names.append(action)
        return number

    def __len__(self) -> int:
        return len(self.actions)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Event(
            self.action_names[self.actions[index]],
            self.addresses[index],
            self.sizes[index],
            self.streams[index],
            self.times[index],
            self.stacks[index],
            self.forwards[index],
            _CATEGORIES[self.categories[index]],
            self._module_names[self.modules[index]],
        )

    def __iter__(self) -> Iterator[Event]:
        return map(
            Event,
            map(self.action_names.__getitem__, self.actions),
            self.addresses,
            self.sizes,
            self.streams,
            self.times,
            self.stacks,
            self.forwards,
            map(_CATEGORIES.__getitem__, self.categories),
            map(self._module_names.__getitem__, self.modules),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(Event.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EventLog({len(self):,} events)"


def log_of(events: Sequence[Event]) -> EventLog:
    """Events as a log; a log is returned as it is."""
    return events if isinstance(events, EventLog) else EventLog(events)
