"""The events of one allocator in columns: a tenth of the memory that an object each would take."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

from .category import Category
from .model import Event

_CATEGORIES: Final = tuple(Category)
_CATEGORY_NUMBERS: Final = {category: number for number, category in enumerate(_CATEGORIES)}
_MOST_ACTIONS: Final = 255
_NUMBERS: Final = 6
"""Numbers of each event that ``EventLog.extend`` takes."""


class EventLog(Sequence[Event]):
    """Events in order; each is made when it is asked for."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.action_names: list[str] = []
        self.actions, self._categories = array("B"), array("B")
        self.addresses, self.sizes = array("Q"), array("Q")
        self.streams, self.times = array("q"), array("q")
        self.stacks, self.forwards, self._modules = array("i"), array("i"), array("i")
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
        self._categories.append(_CATEGORY_NUMBERS[category])
        self._modules.append(self.module_number(module))

    def extend(self, numbers: array[int]) -> None:
        """Add events whose stacks and categories are not known yet.

        Each is six numbers: of its action, address, size, stream, time, and of its module.
        """
        count = len(numbers) // _NUMBERS
        self.actions.extend(array("B", numbers[::_NUMBERS]))
        for position, column in enumerate(
            (self.addresses, self.sizes, self.streams, self.times), start=1
        ):
            column.frombytes(numbers[position::_NUMBERS].tobytes())
        self.stacks.extend(array("i", [0]) * count)
        self.forwards.extend(array("i", [0]) * count)
        self._categories.extend(array("B", [_CATEGORY_NUMBERS[Category.UNKNOWN]]) * count)
        self._modules.extend(array("i", numbers[5::_NUMBERS]))

    def module_number(self, module: str) -> int:
        number = self._module_numbers.setdefault(module, len(self._module_names))
        if number == len(self._module_names):
            self._module_names.append(module)
        return number

    def changes(self) -> Iterator[tuple[str, int, int]]:
        """Action, address and size of each event, for those who need no more of so many."""
        return zip(
            map(self.action_names.__getitem__, self.actions),
            self.addresses,
            self.sizes,
            strict=True,
        )

    def indexes(self, action: str) -> list[int]:
        number = self._action_numbers.get(action)
        if number is None:
            return []
        return [index for index, one in enumerate(self.actions) if one == number]

    @property
    def categories(self) -> Sequence[int]:
        """Of each event, the place of its category in ``Category``."""
        return self._categories

    def set_category(self, index: int, category: Category) -> None:
        self._categories[index] = _CATEGORY_NUMBERS[category]

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
            _CATEGORIES[self._categories[index]],
            self._module_names[self._modules[index]],
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
            map(_CATEGORIES.__getitem__, self._categories),
            map(self._module_names.__getitem__, self._modules),
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
