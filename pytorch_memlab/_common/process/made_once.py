"""Objects of which the process or an owner has one, whichever threads ask for them first."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


def made_once(make: Callable[..., T]) -> Callable[..., T]:
    """Remember what a function made for the same arguments: the same object for all threads."""
    made: dict[tuple[Hashable, ...], T] = {}

    @functools.wraps(make)
    def get(*arguments: Hashable) -> T:
        try:
            return made[arguments]
        except KeyError:
            return made.setdefault(arguments, make(*arguments))

    return get


Value = TypeVar("Value")


class WeakRegistry(Generic[Value]):
    """Finds the object that was made for an owner, and does not keep it alive."""

    # Each object keeps its own owner alive, so that no other owner gets the ``id``.

    # A WeakValueDictionary runs Python code when a value dies, where Python swallows a Ctrl-C.

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Value]] = {}
        self._lock = threading.RLock()

    def of(self, owner: object, make: Callable[[], Value]) -> Value:
        """The object of an owner, made if there is none: one for all threads."""
        with self._lock:
            reference = self._known.get(id(owner))
            value = None if reference is None else reference()
            if value is None:
                for key in [key for key, reference in self._known.items() if reference() is None]:
                    del self._known[key]
                value = make()
                self._known[id(owner)] = weakref.ref(value)
            return value
