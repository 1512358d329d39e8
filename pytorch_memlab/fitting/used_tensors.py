"""The tensors that a function uses, found without running code of any object."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from .._common.frames.user_code import is_of_user
from ..tensors.live_objects import gradient_of

_LEADS_NOWHERE = (ModuleType, CodeType, torch.dtype, torch.device)


def used_tensors(*roots: object) -> list[torch.Tensor]:
    """The tensors that functions and objects refer to, over any number of other objects."""
    # Of its module's globals, a function uses those that its code names.
    tensors = []
    waiting: list[Any] = list(roots)
    seen = {id(waiting)}
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            waiting.append(gradient_of(value))
        waiting += (part for part in _parts(value) if gc.is_tracked(part))
    return tensors


def _parts(value: Any) -> Iterator[Any]:
    """The objects that an object refers to, but for what leads to the whole process."""
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, FrameType):
        yield from value.f_locals.values()
    elif isinstance(value, type):
        if _is_of_user(value):
            yield from vars(value).values()
    elif not isinstance(value, _LEADS_NOWHERE) and not _are_globals(value):
        yield from gc.get_referents(value)


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    yield from (function.__closure__, function.__defaults__, function.__kwdefaults__)
    yield vars(function)
    if is_of_user(function.__code__.co_filename):
        variables = function.__globals__
        yield from (variables[name] for name in _names(function.__code__) if name in variables)


def _names(code: CodeType) -> Iterator[str]:
    """The names in a code and the functions in it, among them those of globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(str(kind.__module__))
    filename = getattr(module, "__file__", None)
    return module is not None and (filename is None or is_of_user(filename))


def _are_globals(value: object) -> bool:
    return type(value) is dict and "__builtins__" in value and "__name__" in value
