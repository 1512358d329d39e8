"""Data that ``print`` and notebooks show, and that composes no text: ``render`` registers it.

``render/displays.py`` has the one list of classes and what shows them. The package's ``__init__``,
which sees every package, says here how that list is found when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Display(NamedTuple):
    text: Callable[[Any], str]
    html: Callable[[Any], str]


_displays: dict[type, _Display] = {}
_registers: list[Callable[[], Iterable[Callable[[], None]]]] = []


class Displayed:
    """Base of a class of data that is registered."""

    __slots__ = ()

    def __str__(self) -> str:
        return _display_of(type(self)).text(self)

    def _repr_html_(self) -> str:
        return _display_of(type(self)).html(self)


def display_by(kind: type[T], text: Callable[[T], str], html: Callable[[T], str]) -> None:
    """Register what shows a class of data: as text, and in a notebook."""
    _displays[kind] = _Display(text, html)


def registered_by(registers: Callable[[], Iterable[Callable[[], None]]]) -> None:
    """Say what gives the functions that register, one after the other until a class is there."""
    _registers[:] = [registers]


def _display_of(kind: type) -> _Display:
    registers = (register for register_all in _registers for register in register_all())
    display = _registered(kind)
    while display is None:
        next(registers)()
        display = _registered(kind)
    return display


def _registered(kind: type) -> _Display | None:
    return next((_displays[base] for base in kind.__mro__ if base in _displays), None)
