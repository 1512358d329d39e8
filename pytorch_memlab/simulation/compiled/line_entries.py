"""Statements of generated code that tell which line of the program runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from ..._common.frames.compiled_code import Frames, compiled_code
from .program_frames import in_frames

_CALLS: Final = "_calls_from_lines"
_ARRIVALS: Final = "_arrivals_at_lines"


class LineEntries:
    """Calls that one generated function makes where it comes to lines of the program."""

    def __init__(self) -> None:
        self._calls: list[Callable[..., Any]] = []
        self._arrivals: list[Callable[[], None]] = []

    def arrival(self, frames: Frames) -> ast.stmt:
        """A statement that tells that the code arrives at a line."""
        self._arrivals.append(compiled_code.at(frames))
        return ast.Expr(ast.Call(_entry(_ARRIVALS, len(self._arrivals) - 1), [], []))

    def call(self, frames: Frames, call: ast.Call) -> ast.Call:
        """A call as a line makes it."""
        self._calls.append(in_frames(frames))
        caller = _entry(_CALLS, len(self._calls) - 1)
        return ast.Call(caller, [call.func, *call.args], call.keywords)

    def place(
        self,
        frames: Frames,  # of the line; without any, it is that of the caller
        name: str,  # of what the other one does; it shows below the line
    ) -> ast.expr:
        """An expression: a function that arrives at a line, and calls another one as it does."""
        call = in_frames((*(frame for frame in frames if frame[0]), ("", 1, name)))
        arrive = compiled_code.at(frames)

        def call_there(function: Callable[..., Any], *args: Any) -> Any:
            if frames:
                arrive()
            return call(function, *args)

        self._calls.append(call_there)
        return _entry(_CALLS, len(self._calls) - 1)

    def names(self) -> dict[str, Any]:
        """The names that the statements use."""
        return {_CALLS: self._calls, _ARRIVALS: self._arrivals}


def _entry(name: str, place: int) -> ast.expr:
    return ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(place), ast.Load())
