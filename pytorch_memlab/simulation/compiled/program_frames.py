"""Frames of lines that Python does not run, because a compiler has taken their place.

Note [Lines of compiled code]
An allocation of a compiled graph comes from a line of the model. It is made in frames whose code
objects have the file, the line and the function's name of that line, and of its callers in the
compiled code, so that the stacks of allocations show them.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

from torch.fx import Graph

from ..._common.frames.compiled_code import Frame, Frames

_FRAME: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_CALLS: Final = "lambda function, *args, **kwargs: function(*args, **kwargs)"

_OPS: Final = frozenset({"call_function", "call_method", "call_module"})

_RESUMED: Final = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
"""The name that Dynamo gives to what a function does after a graph break."""


def frames_of(trace: str) -> Frames:
    """The frames that a stack's text names, outermost first."""
    return tuple(
        (file, int(line), _RESUMED.sub(r"\1", name)) for file, line, name in _FRAME.findall(trace)
    )


def with_fused(frames: Frames, others: Iterable[Frames]) -> Frames:
    """The frames of a buffer, with a last one that names the other lines whose ops it has."""
    # That one has no file, so that the buffer counts at its own line.
    own, lines = frames[-1], {other[-1] for other in others if other}
    names = [f"{os.path.basename(file)}:{line}" for file, line, _ in sorted(lines - {own})]
    return (*frames, ("", 1, f"fused with {', '.join(names)}")) if names else frames


def frames_of_ops(graph: Graph) -> frozenset[Frames]:
    """The lines that the ops of a graph come from."""
    traces = {node.meta.get("stack_trace") for node in graph.nodes if node.op in _OPS}
    return frozenset(frames_of(trace) for trace in traces if trace)


@cache
def in_frames(frames: Frames) -> Callable[..., Any]:
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
