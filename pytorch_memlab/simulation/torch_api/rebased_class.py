"""A class of torch made again over another base."""

from __future__ import annotations

import functools
import types
from typing import Any


@functools.cache
def over(original: type, base: type) -> type:
    """A class of torch with another base; ``super()`` in its methods finds that."""
    cell = types.CellType()
    members = {
        name: _in_class(value, cell)
        for name, value in vars(original).items()
        if name not in ("__dict__", "__weakref__")
    }
    made = type(original.__name__, (base,), members)
    cell.cell_contents = made
    return made


def _in_class(value: Any, cell: types.CellType) -> Any:
    """A member of a class as that of another, whose ``__class__`` is in the cell."""
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(_in_class(value.__func__, cell))
    if isinstance(value, property):
        return property(_in_class(value.fget, cell), doc=value.__doc__)
    if not isinstance(value, types.FunctionType) or "__class__" not in value.__code__.co_freevars:
        return value
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    closure = tuple(cell if name == "__class__" else held for name, held in cells)
    copy = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, closure
    )
    copy.__kwdefaults__ = value.__kwdefaults__
    vars(copy).update(vars(value))
    return copy
