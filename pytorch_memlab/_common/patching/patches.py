"""Names replaced for a while, and put back exactly as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from ..interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..interrupts.whole_exit import WholeExit

_ABSENT = object()


class Patches:
    """Replaces attributes of modules and classes until ``undo``."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._before = ExitStack()

    def __enter__(self) -> Patches:
        return self

    def _end(self, _error: BaseException | None, _mark: list[None]) -> None:
        self.undo()

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def set_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Replace several attributes."""
        for name, value in values.items():
            self.set(owner, name, value)

    def around(self, owner: Any, *names: str) -> Callable[[Callable[..., Any]], None]:
        """Decorate: replace functions by calls of one that takes the original as an argument."""

        def replace(function: Callable[..., Any]) -> None:
            for name in names:
                original = getattr(owner, name)
                self.set(owner, name, wraps(original)(_called_with(original, function)))

        return replace

    def set_by_name(self, *replaced: tuple[Any, Any]) -> None:
        """Replace functions by others in every module that holds them under their own names."""
        # Modules imported before ``undo`` keep the others: these must do the same as the originals.
        named = [(original.__name__, original, value) for original, value in replaced]
        for module, held in modules_with(frozenset(name for name, *_ in named)):
            for name, original, value in named:
                if held.get(name) is original:
                    self.set(module, name, value)

    def names_of(self, owner: Any) -> frozenset[str]:
        """Names of an owner that are replaced now."""
        return frozenset(name for other, name, *_ in self._undo if other is owner)

    def before_undo(self, callback: Callable[[], object]) -> None:
        """Call a function before ``undo`` puts anything back, the last added first."""
        self._before.callback(callback)

    @contextmanager
    def suspended(self) -> Iterator[dict[Any, Any]]:
        """Within: everything is as it was. Yields the functions that are replaced, and by what."""
        # What others put in place of a replacement stays.
        entries = self._undo.copy()
        suspended = []
        for owner, name, before, value in reversed(entries):
            if vars(owner).get(name) is value:
                _put(owner, name, before)
                suspended.append((owner, name, value))
        try:
            yield {
                before: value
                for _, _, before, value in entries
                if isinstance(before, (FunctionType, BuiltinFunctionType))
            }
        finally:
            for owner, name, value in reversed(suspended):
                setattr(owner, name, value)

    def undo(self, *, keeps_later: bool = False) -> None:
        """Put every attribute back, the last replaced first."""
        # ``keeps_later``: what the program put in place of a replacement stays.
        with uninterrupted(*STANDARD_SIGNALS):
            try:
                self._before.close()
            finally:
                while self._undo:
                    owner, name, before, value = self._undo.pop()
                    if keeps_later and vars(owner).get(name) is not value:
                        continue
                    _put(owner, name, before)


_without: dict[frozenset[str], tuple[dict[str, Any], dict[str, int]]] = {}
"""Modules that lacked some names when they were looked at: with which specification, and with how
many names. Each simulation asks for the same ones, and thousands of modules rarely change."""
# In two dicts: thousands of pairs are so many objects that Python looks through all of torch's for
# garbage, which takes longer than the first simulation.


def modules_with(names: frozenset[str]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The modules that hold something under any of these names, with all that they hold."""
    specs, sizes = _without.setdefault(names, ({}, {}))
    for key, module in list(sys.modules.items()):
        held = getattr(module, "__dict__", None)  # None where a module must not be imported
        if held is None:
            continue
        spec = held.get("__spec__")  # another one once a module is loaded again
        size = len(held)
        if sizes.get(key) == size and specs[key] is spec:
            continue
        if not held.keys().isdisjoint(names):
            yield module, held
        elif spec is not None:  # None where a user types more: a session, a notebook
            specs[key], sizes[key] = spec, size


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _called_with(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return replaced
