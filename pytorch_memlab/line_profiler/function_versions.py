"""Functions that were edited: before they were registered, or since."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..records import EditedFunctions, StaleSources

if TYPE_CHECKING:
    from types import CodeType, FunctionType

    from ..records import Note
    from .registration import RegisteredFunction


class FunctionVersions:
    """The versions of functions that one profiler has."""

    def __init__(self) -> None:
        self._codes: dict[int, tuple[weakref.ref[FunctionType], CodeType]] = {}
        self._stale: dict[str, None] = {}

    def add(self, registered: RegisteredFunction, *, is_stale: bool) -> None:
        """Remember a function as it is now, without keeping it alive."""
        code = registered.code
        self._codes[id(code)] = weakref.ref(registered.function), code
        if is_stale:
            self._stale[registered.qual_name] = None

    def clear(self) -> None:
        """Forget all."""
        self._codes.clear()
        self._stale.clear()

    def notes(self) -> list[Note]:
        """Notes on edited functions."""
        living = ((reference(), code) for reference, code in self._codes.values())
        edited = tuple(
            function.__qualname__
            for function, code in living
            if function is not None and function.__code__ is not code
        )
        stale = [StaleSources(tuple(self._stale))] if self._stale else []
        return [*stale, *([EditedFunctions(edited)] if edited else [])]
