"""Objects of JSON from outside, each field checked when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .._common.quoted import quoted
from ..errors import MemlabError

_TOO_LARGE: Final = 2**63
"""Counters are of 64 bits."""

_OWN: Final[Any] = object()
"""Stands for the value of the field itself."""


class DamagedError(MemlabError):
    """A field is missing, or is not what it has to be."""


class Checked:
    """An object of JSON."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def value(self, name: str) -> Any:
        """A field, unchecked."""
        if name not in self._data:
            raise DamagedError(f"it has no {quoted(name)}")
        return self._data[name]

    def has(self, name: str) -> bool:
        """True if the field is there and not null. Older files lack some."""
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        """A string."""
        value = self.value(name)
        if isinstance(value, str):
            return value
        raise _refused(name, value, "a text")

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if isinstance(value, bool):
            return value
        raise _refused(name, value, "true or false")

    def number(self, name: str, value: Any = _OWN) -> int:
        """An integer: the field, or a value in it. So all others."""
        value = self.value(name) if value is _OWN else value
        if type(value) is int and -_TOO_LARGE < value < _TOO_LARGE:
            return value
        raise _refused(name, value, "a whole number of 64 bits")

    def count(self, name: str, value: Any = _OWN) -> int:
        """An integer that is not negative."""
        value = self.value(name) if value is _OWN else value
        if type(value) is int and 0 <= value < _TOO_LARGE:
            return value
        raise _refused(name, value, "a whole number from 0 on")

    def index(self, name: str, length: int, value: Any = _OWN) -> int:
        """An index of a list of that length."""
        value = self.value(name) if value is _OWN else value
        if type(value) is int and 0 <= value < length:
            return value
        raise _refused(name, value, f"an index below {length}")

    def seconds(self, name: str, value: Any = _OWN) -> float:
        """A number that is not negative."""
        value = self.value(name) if value is _OWN else value
        if (isinstance(value, float) or type(value) is int) and 0 <= value < _TOO_LARGE:
            return float(value)
        raise _refused(name, value, "a number from 0 on")

    def object(self, name: str, value: Any = _OWN) -> Checked:
        """An object."""
        value = self.value(name) if value is _OWN else value
        if isinstance(value, dict):
            return Checked(value)
        raise _refused(name, value, "an object")

    def objects(self, name: str) -> list[Checked]:
        """A list of objects."""
        return [self.object(name, value) for value in self._list(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(name)
        if all(isinstance(value, str) for value in values):
            return tuple(values)
        raise _refused(name, values, "a list of texts")

    def numbers(self, name: str, length: int) -> list[int]:
        """A list of indexes."""
        return [self.index(name, length, value) for value in self._list(name)]

    def rows(self, name: str, width: int) -> Iterator[list[Any]]:
        """A list of lists, each of that length; their values are unchecked."""
        for row in self._list(name):
            if not isinstance(row, list) or len(row) != width:
                raise _refused(name, row, f"a list of {width}")
            yield row

    def lists(self, name: str) -> Iterator[list[Any]]:
        """A list of lists; their values are unchecked."""
        for row in self._list(name):
            if not isinstance(row, list):
                raise _refused(name, row, "a list")
            yield row

    def object_by_name(self, name: str) -> dict[str, Checked]:
        """An object of objects."""
        value = self.object(name)
        return {key: value.object(key) for key in value._data}

    def text_by_name(self, name: str) -> dict[str, str]:
        """An object of strings."""
        value = self.object(name)
        return {key: value.text(key) for key in value._data}

    def number_by_name(self, name: str) -> dict[str, int]:
        """An object of integers."""
        value = self.object(name)
        return {key: value.number(key) for key in value._data}

    def lists_by_number(self, name: str) -> dict[int, list[Any]]:
        """An object of lists, whose names are integers."""
        value = self.object(name)
        if not all(key.isdecimal() for key in value._data):
            raise _refused(name, list(value._data), "names that are numbers")
        return {int(key): value._list(key) for key in value._data}

    def _list(self, name: str) -> list[Any]:
        value = self.value(name)
        if isinstance(value, list):
            return value
        raise _refused(name, value, "a list")


def _refused(name: str, value: object, expected: str) -> DamagedError:
    return DamagedError(f"{quoted(name)} has {quoted(value)}, expected is {expected}")
