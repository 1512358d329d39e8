"""Records from JSON of outside, each value checked by the type of its field.

Note [Records are the format]
The dataclasses of ``records``, ``profiles`` and ``history`` are the format of files: each field is
written under its name, and read by its type. A field with a default may be missing, as it is in
files of older releases. Whole numbers are from 0 on, unless the field is ``Signed``; a ``Path`` is
written from the working folder or from ``~``. What is large (lines, blocks, frames) is in rows:
tuples with types, in dataclasses that mirror the file. So a file is read in two steps: all of its
values are checked, then objects are made of them, and what they name is looked up.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .._common.process.ipython import source_name
from .._common.text.quoted import quoted
from .._common.text.shared_paths import restored, stored
from ..errors import MemlabError
from ..records import Note, Path, Signed

_TOO_LARGE: Final = 2**63
"""Counters are of 64 bits."""

Address = Annotated[int, "of 64 bits, without a sign"]

Unchecked = Annotated[Any, "checked where it is used"]

T = TypeVar("T")

Reader = Callable[[str, Any], Any]
"""A function of the name of a field, which messages have, and of its value."""


class DamagedError(MemlabError):
    """A field is missing, or is not what it has to be."""


def refused(name: str, value: object, expected: str) -> DamagedError:
    """The error that says which field is damaged."""
    return DamagedError(f"{quoted(name)} has {quoted(value)}, expected is {expected}")


def text(name: str, value: Any) -> str:
    """A string."""
    if type(value) is str:
        return value
    raise refused(name, value, "a text")


def flag(name: str, value: Any) -> bool:
    """True or false."""
    if type(value) is bool:
        return value
    raise refused(name, value, "true or false")


def number(name: str, value: Any) -> int:
    """An integer."""
    if type(value) is int and -_TOO_LARGE < value < _TOO_LARGE:
        return value
    raise refused(name, value, "a whole number of 64 bits")


def count(name: str, value: Any) -> int:
    """An integer that is not negative."""
    if type(value) is int and 0 <= value < _TOO_LARGE:
        return value
    raise refused(name, value, "a whole number from 0 on")


def address(name: str, value: Any) -> int:
    """An integer of 64 bits without a sign."""
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise refused(name, value, "a whole number of 64 bits without a sign")


def seconds(name: str, value: Any) -> float:
    """A number that is not negative."""
    if type(value) in (int, float) and 0 <= value < _TOO_LARGE:
        return float(value)
    raise refused(name, value, "a number from 0 on")


def an_object(name: str, value: Any) -> dict[str, Any]:
    """An object, its values unchecked."""
    if type(value) is dict:
        return value
    raise refused(name, value, "an object")


def a_list(name: str, value: Any) -> Sequence[Any]:
    """A list, its values unchecked; a tuple where a process sends records to another."""
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    raise refused(name, value, "a list")


def row(name: str, value: Any, width: int) -> Sequence[Any]:
    """A list of that length, its values unchecked."""
    if type(value) in (list, tuple) and len(value) == width:
        return value  # type: ignore[no-any-return]
    raise refused(name, value, f"a list of {width}")


def record(kind: type[T], data: Any, name: str = "", /) -> T:
    """A dataclass, each field by its type."""
    fields, data = {}, an_object(name, data)
    for field, (read, is_needed) in _readers(cast("Hashable", kind)).items():
        if field in data:
            fields[field] = read(field, data[field])
        elif is_needed:
            raise DamagedError(f"it has no {quoted(field)}")
    return kind(**fields)


def data_of(dataclass_value: Any) -> dict[str, Any]:
    """A record as an object of JSON, with its paths as files keep them."""
    paths = {
        name: getattr(dataclass_value, name)
        for name in _paths(cast("Hashable", type(dataclass_value)))
    }
    return asdict(dataclass_value) | {
        name: stored(source_name(path)) for name, path in paths.items()
    }


@cache
def _paths(kind: Any) -> tuple[str, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(field.name for field in fields(kind) if hints[field.name] == Path)


@cache
def _readers(kind: Any) -> dict[str, tuple[Reader, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (
            reader_of(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)
        if field.init
    }


@cache
def reader_of(kind: Any) -> Reader:
    """The function that reads values of a type."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda name, value: record(kind, value, name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_member_of, kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # with None alone
        (read,) = (reader_of(inner_type) for inner_type in inner if inner_type is not type(None))
        return lambda name, value: None if value is None else read(name, value)
    if origin is tuple and inner[-1] is ...:
        return partial(_tuple_of, reader_of(inner[0]))
    if origin is tuple:
        reads = [reader_of(inner_type) for inner_type in inner]
        return lambda name, value: tuple(
            read(name, element)
            for read, element in zip(reads, row(name, value, len(reads)), strict=True)
        )
    if isinstance(origin, type) and issubclass(origin, Mapping) and inner[0] is str:
        read = reader_of(inner[1])
        return lambda name, value: {
            key: read(key, element) for key, element in an_object(name, value).items()
        }
    raise TypeError(f"no file has a {kind}")


def _tuple_of(read: Reader, name: str, value: Any) -> tuple[Any, ...]:
    return tuple([read(name, element) for element in a_list(name, value)])


def _member_of(kind: type[Enum], name: str, value: Any) -> Enum:
    member = next((member for member in kind if member.value == value), None)
    if member is None:
        raise refused(name, value, f"one of {', '.join(str(member.value) for member in kind)}")
    return member


_SIMPLE: Final[dict[Any, Reader]] = {
    str: text,
    bool: flag,
    int: count,
    float: seconds,
    Signed: number,
    Address: address,
    Unchecked: lambda _name, value: value,
    Path: lambda name, value: restored(text(name, value)),
    Note: text,
}
