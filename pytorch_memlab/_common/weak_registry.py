"""One object for each owner, shared while it is in use."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


class WeakRegistry(Generic[Value]):
    """Finds the object that was made for an owner, and does not keep it alive.

    Each object keeps its own owner alive, so that no other owner gets the ``id``.
    """

    # A WeakValueDictionary runs Python code when a value dies, where Python swallows a Ctrl-C.

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Value]] = {}
        self._lock = threading.RLock()

    def of(self, owner: object, make: Callable[[], Value]) -> Value:
        """The object of an owner, made if there is none: one for all threads."""
        with self._lock:
            known = self._known.get(id(owner))
            value = None if known is None else known()
            if value is None:
                for key in [key for key, one in self._known.items() if one() is None]:
                    del self._known[key]
                value = make()
                self._known[id(owner)] = weakref.ref(value)
            return value
