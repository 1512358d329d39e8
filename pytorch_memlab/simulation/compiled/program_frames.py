"""Frames of lines that Python does not run, because a compiler has taken their place.

Note [Lines of compiled code]
An allocation of a compiled graph comes from a line of the model. It is made in frames whose code
objects have the file, the line and the function's name of that line, and of its callers in the
compiled code, so that the stacks of allocations show them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

_FRAME: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_CALLS: Final = "lambda function, *args, **kwargs: function(*args, **kwargs)"

Frame = tuple[str, int, str]
"""File, line and function's name."""


def frames_of(trace: str) -> tuple[Frame, ...]:
    """The frames that a stack's text names, outermost first."""
    return tuple((file, int(line), name) for file, line, name in _FRAME.findall(trace))


@cache
def in_frames(frames: tuple[Frame, ...]) -> Callable[..., Any]:
    """A function that calls another one in these frames, outermost first."""
    *outer, inner = frames
    function = FunctionType(_code_of(inner), {})
    if not outer:
        return function
    around = in_frames(tuple(outer))
    return lambda *args, **kwargs: around(function, *args, **kwargs)


@cache
def _code_of(frame: Frame) -> CodeType:
    file, line, name = frame
    tree = ast.increment_lineno(ast.parse(_CALLS, mode="eval"), line - 1)
    module = compile(tree, file, "eval")
    code = next(value for value in module.co_consts if isinstance(value, CodeType))
    return code.replace(co_name=name)
