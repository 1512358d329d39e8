"""The variable of the program that a model is in, and where code that changes the model goes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from torch import nn

from ...reporter.variables import locals_of
from .program_lines import Line, after_assignment, line_of, user_frames
from .remedy import Edit


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """A variable that a model is in."""

    name: str  # such as ``model`` or ``self.net``
    line: Line | None

    def with_code(self, lines: Sequence[str]) -> Edit | None:
        """Code that follows the assignment of the variable; None if that is not found."""
        return None if self.line is None else after_assignment(self.line, self.name, lines)


def model_variable(model: nn.Module) -> ModelVariable:
    """The variable that a running function of the program has a model in."""
    found = [
        variable
        for frame in user_frames()
        for variable in (*_own(frame, model), *_global(frame, model))
    ]
    assigned = [each for each in found if each.with_code(["pass"]) is not None]
    return next(iter(assigned or found), ModelVariable("model", None))


def _own(frame: FrameType, model: nn.Module) -> Iterator[ModelVariable]:
    """Variables of a function, and attributes of its object."""
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    variables = locals_of(frame) if is_function else dict(frame.f_locals)
    line = line_of(frame)
    owner = getattr(variables.get("self"), "__dict__", {})
    for name, value in (*owner.items(), *(owner.get("_modules") or {}).items()):
        if value is model:
            yield ModelVariable(f"self.{name}", line)
    for name, value in variables.items():
        if value is model and name != "self":
            yield ModelVariable(name, line)


def _global(frame: FrameType, model: nn.Module) -> Iterator[ModelVariable]:
    """Variables of the module that a function is of."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        line = Line(frame.f_code.co_filename, sys.maxsize, 0)
        for name, value in list(frame.f_globals.items()):
            if value is model:
                yield ModelVariable(name, line)
