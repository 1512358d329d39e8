"""Functions that were edited: before they were registered, or since."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .selection import listed

if TYPE_CHECKING:
    from types import CodeType, FunctionType

    from .registration import RegisteredFunction


class FunctionVersions:
    """Which version of each function one profiler has."""

    def __init__(self) -> None:
        self._codes: dict[int, tuple[weakref.ref[FunctionType], CodeType]] = {}
        self._stale: dict[str, None] = {}

    def add(self, registered: RegisteredFunction, *, is_stale: bool) -> None:
        """Remember a function as it is now.

        Args:
            registered: the function; it is not kept alive.
            is_stale: whether its file has another version by now.
        """
        code = registered.code
        self._codes[id(code)] = weakref.ref(registered.function), code
        if is_stale:
            self._stale[registered.qual_name] = None

    def clear(self) -> None:
        """Forget all."""
        self._codes.clear()
        self._stale.clear()

    def notes(self) -> list[str]:
        """What is to be said of edited functions."""
        notes = []
        if self._stale:
            notes.append(
                f"{listed(self._stale)}: the file has changed since it was loaded, so there is no "
                "source to show; reload it"
            )
        living = ((reference(), code) for reference, code in self._codes.values())
        edited = [
            function.__qualname__
            for function, code in living
            if function is not None and function.__code__ is not code
        ]
        if edited:
            notes.append(
                f"{listed(edited)} was edited since: these lines are of the version before; make "
                "another LineProfiler"
            )
        return notes
