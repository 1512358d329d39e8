"""Objects of JSON from outside, each field checked when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final, TypeVar

from .._common.quoted import printable, quoted
from .._common.version import __version__
from ..errors import MemlabError, ProfileError

_TOO_LARGE: Final = 2**63
"""Counters are of 64 bits."""

_OWN: Final[Any] = object()
"""Stands for the value of the field itself."""

T = TypeVar("T")


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
        return self._checked(name, _OWN, "a text", (str,))

    def flag(self, name: str) -> bool:
        """True or false."""
        return self._checked(name, _OWN, "true or false", (bool,))

    # A history has millions of integers: these and rows check by themselves, for speed.

    def number(self, name: str, value: Any = _OWN) -> int:
        """An integer: the field, or where that holds several, a value of it."""
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
        kinds, expected = (int, float), "a number from 0 on"
        return float(self._checked(name, value, expected, kinds, lambda one: 0 <= one < _TOO_LARGE))

    def object(self, name: str, value: Any = _OWN) -> Checked:
        """An object."""
        return Checked(self._checked(name, value, "an object", (dict,)))

    def objects(self, name: str) -> list[Checked]:
        """A list of objects."""
        return [self.object(name, value) for value in self._list(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(name)
        are_texts = all(isinstance(value, str) for value in values)
        return tuple(self._checked(name, values, "a list of texts", (list,), lambda _: are_texts))

    def indexes(self, name: str, length: int) -> tuple[int, ...]:
        """A list of indexes."""
        return tuple(self.index(name, length, value) for value in self._list(name))

    def rows(self, name: str, width: int) -> Iterator[list[Any]]:
        """A list of lists, each of that length; their values are unchecked."""
        for row in self._list(name):
            if not isinstance(row, list) or len(row) != width:
                raise _refused(name, row, f"a list of {width}")
            yield row

    def lists(self, name: str) -> Iterator[list[Any]]:
        """A list of lists; their values are unchecked."""
        return (self._list(name, row) for row in self._list(name))

    def lists_by_number(self, name: str) -> dict[int, list[Any]]:
        """An object of lists, whose names are integers."""
        inner = self.object(name)
        keys, expected = list(inner._data), "names that are numbers"
        self._checked(name, keys, expected, (list,), lambda _: all(map(str.isdecimal, keys)))
        return {int(key): inner._list(key) for key in keys}

    def record(self, kind: type[T], /, **others: Any) -> T:
        """A dataclass of the fields of its names, each by its type, but for others."""
        named = [one for one in fields(kind) if one.name not in others]  # type: ignore[arg-type]
        return kind(**{one.name: _READERS[one.type](self, one.name) for one in named}, **others)

    def by_name(self, name: str, read: Callable[[Checked, str], T]) -> dict[str, T]:
        """An object of values that a method of this class reads."""
        inner = self.object(name)
        return {key: read(inner, key) for key in inner._data}

    def _list(self, name: str, value: Any = _OWN) -> list[Any]:
        return self._checked(name, value, "a list", (list,))

    def _checked(
        self,
        name: str,
        value: Any,
        expected: str,
        kinds: tuple[type[T], ...],
        is_right: Callable[[Any], bool] = lambda _: True,
    ) -> T:
        found: T = self.value(name) if value is _OWN else value
        if type(found) in kinds and is_right(found):
            return found
        raise _refused(name, found, expected)


def check_version(data: dict[str, Any], newest: int, called: str) -> None:
    """Refuse a file of a version that a later release wrote."""
    version = data.get("version")
    if type(version) is not int or version > newest:
        raise ProfileError(
            f"{called} was written by pytorch_memlab {printable(str(data.get('written_by')))}, this"
            f" is {__version__}: upgrade to read it"
        )


def _refused(name: str, value: object, expected: str) -> DamagedError:
    return DamagedError(f"{quoted(name)} has {quoted(value)}, expected is {expected}")


_READERS: Final[dict[Any, Callable[[Checked, str], Any]]] = {
    "str": Checked.text,
    "bool": Checked.flag,
    "int": Checked.count,
    "int | None": lambda data, name: data.count(name) if data.has(name) else None,
    "float": Checked.seconds,
    "tuple[str, ...]": Checked.texts,
    "Mapping[str, str]": lambda data, name: data.by_name(name, Checked.text),
}
"""By the types of fields as their classes write them."""
