"""Objects of JSON from outside, each field checked when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .._common.quoted import quoted
from ..errors import MemlabError

_TOO_LARGE: Final = 2**63
"""Counters are of 64 bits."""


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

    def number(self, name: str) -> int:
        """An integer."""
        return self.checked_number(self.value(name), name)

    def count(self, name: str) -> int:
        """An integer that is not negative."""
        return self.checked_count(self.value(name), name)

    def index(self, name: str, length: int) -> int:
        """An index of a list of that length."""
        return self.checked_index(self.value(name), length, name)

    def seconds(self, name: str) -> float:
        """A number that is not negative."""
        return self.checked_seconds(self.value(name), name)

    def object(self, name: str) -> Checked:
        """An object."""
        return self.checked_object(self.value(name), name)

    def objects(self, name: str) -> list[Checked]:
        """A list of objects."""
        return [self.checked_object(value, name) for value in self._list(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(name)
        if all(isinstance(value, str) for value in values):
            return tuple(values)
        raise _refused(name, values, "a list of texts")

    def numbers(self, name: str, length: int) -> list[int]:
        """A list of indexes."""
        return [self.checked_index(value, length, name) for value in self._list(name)]

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

    def checked_number(self, value: Any, name: str) -> int:
        """A value of a field: an integer that a counter can have."""
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and -_TOO_LARGE < value < _TOO_LARGE
        ):
            return value
        raise _refused(name, value, "a whole number of 64 bits")

    def checked_count(self, value: Any, name: str) -> int:
        """A value of a field: an integer that is not negative."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE:
            return value
        raise _refused(name, value, "a whole number from 0 on")

    def checked_index(self, value: Any, length: int, name: str) -> int:
        """A value of a field: an index of a list of that length."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < length:
            return value
        raise _refused(name, value, f"an index below {length}")

    def checked_seconds(self, value: Any, name: str) -> float:
        """A value of a field: a number that is not negative."""
        if (isinstance(value, float) or type(value) is int) and 0 <= value < _TOO_LARGE:
            return float(value)
        raise _refused(name, value, "a number from 0 on")

    def checked_object(self, value: Any, name: str) -> Checked:
        """A value of a field: an object."""
        if isinstance(value, dict):
            return Checked(value)
        raise _refused(name, value, "an object")

    def _list(self, name: str) -> list[Any]:
        value = self.value(name)
        if isinstance(value, list):
            return value
        raise _refused(name, value, "a list")


def _refused(name: str, value: object, expected: str) -> DamagedError:
    return DamagedError(f"{quoted(name)} has {quoted(value)}, expected is {expected}")
