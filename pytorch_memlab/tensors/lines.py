"""Source lines of autograd's nodes: noted on request, or those of anomaly mode."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from .._common.frames import warned_lines
from .._common.frames.program_lines import current_line, is_of_program
from .._common.frames.traceback_frames import clear_internal_frames
from .._common.patching.patches import Patches
from .saved import grad_fn

_KEY = "pytorch_memlab.line"
_TRACEBACK = "traceback_"
"""Key under which anomaly mode keeps its stack (torch/csrc/autograd/python_anomaly_mode.h)."""

_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_NO_PYTHON = ("??", ".cpp", ".cc", ".c", ".h", ".cu", ".so")
_sequence_number = torch._C._autograd._get_sequence_nr


class SourceLine(NamedTuple):
    """A line of a program."""

    filename: str
    line: int

    def __str__(self) -> str:
        """Short: ``train.py:41``."""
        return f"{os.path.basename(self.filename)}:{self.line}"


@contextmanager
def recorded_lines() -> Iterator[None]:
    """Note for every node of autograd that this thread makes which line made it."""
    # The note lives in the node and dies with it. It takes some 10 µs for each op that makes a
    # node. While it is on, PyTorch's fast path for transformer encoders (without gradients) is off.
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        # The nodes of functions written in Python, which no mode sees.
        before = _sequence_number()
        result = original.__get__(None, cls)(*args, **kwargs)
        _note(result, before)
        return result

    with Patches() as patches, _Notes():
        patches.set(torch.autograd.Function, "apply", classmethod(apply))
        warned_lines.install(patches)
        yield


def line_of(node: Any) -> SourceLine | None:
    metadata = getattr(node, "metadata", None)
    if not metadata:
        return None
    noted: SourceLine | None = metadata.get(_KEY)
    return noted or _innermost(metadata.get(_TRACEBACK, ()))


def program_line(frames: Iterable[tuple[str, int]]) -> SourceLine | None:
    """The innermost frame of the program in a stack.

    >>> str(program_line([("??", 0), ("/home/me/train.py", 41)]))
    'train.py:41'
    """
    for filename, line in frames:
        if not filename.endswith(_NO_PYTHON) and is_of_program(filename):
            return SourceLine(filename, line)
    return None


class _Notes(TorchFunctionMode):
    """Notes the line at the nodes that a call made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = _sequence_number()
        try:
            result = func(*args, **(kwargs or {}))
        except BaseException as error:
            clear_internal_frames(error)
            del args, kwargs
            raise
        if _sequence_number() != before:
            _note(result, before)
        return result


def _note(result: Any, before: int) -> None:
    """Note the running line at the nodes behind a result that have this number or a later one."""
    line = SourceLine(*current_line())
    results = result if isinstance(result, (tuple, list)) else [result]
    left = [grad_fn(tensor) for tensor in results if isinstance(tensor, torch.Tensor)]
    while left:
        node = left.pop()
        if node is None or not before <= node._sequence_nr() < _sequence_number():
            continue  # made earlier, or for a leaf: those have the largest number that there is
        if _KEY not in node.metadata:
            node.metadata[_KEY] = line
            left.extend(following for following, _ in node.next_functions)


def _innermost(traceback: Any) -> SourceLine | None:
    entries = _FRAME.findall("".join(traceback))
    return program_line([(filename, int(line)) for filename, line in reversed(entries)])
