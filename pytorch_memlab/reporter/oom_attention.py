"""Attention in a program that ran out of memory: calls of the fused one, and written ones."""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from typing import Final

import torch

from ..history.out_of_memory import OutOfMemory, ProgramLine
from .names import locals_of

_SOFTMAX: Final = "SoftmaxBackward0"
_ATTENTION: Final = "scaled_dot_product_attention"
_PRODUCTS: Final = (" @ ", "matmul(", "bmm(", "einsum(", "mm(")
_NEAR: Final = 8
"""Number of lines from a softmax to the product of matrices that it belongs to."""


def attention_calls(oom: OutOfMemory, error: BaseException) -> tuple[ProgramLine, ...]:
    """Lines that call fused attention with tensors of three dimensions."""
    calls: dict[tuple[str, int], tuple[ProgramLine, int]] = {}
    for place in (frame.place for frame in oom.frames):
        if _ATTENTION in place.source:
            calls[place.file, place.line] = place, _dimensions(place, error)
    for block in sorted(oom.blocks, key=lambda block: -block.size):
        source_line = block.place
        if source_line is not None and _ATTENTION in source_line.source and block.shape:
            calls.setdefault((source_line.file, source_line.line), (source_line, len(block.shape)))
    return tuple(place for place, dimensions in calls.values() if dimensions == 3)


def softmax_calls(oom: OutOfMemory, places: Iterable[ProgramLine]) -> tuple[ProgramLine, ...]:
    """Lines with a softmax beside a product of matrices: attention that is written out."""
    # The product itself may hold nothing any more.
    places = {frame.place for frame in oom.frames}.union(places)
    # A module that is one may have any name.
    taken = {block.place for block in oom.blocks if block.node == _SOFTMAX}
    if oom.frames and "softmax" in _running_in_library(oom):
        taken.add(oom.frames[0].place)
    return tuple(
        place
        for place in places
        if ("softmax(" in place.source or place in taken) and _is_near_product(place)
    )


def _running_in_library(oom: OutOfMemory) -> set[str]:
    """Functions that the innermost line of the program was running."""
    first = oom.frames[0].place
    inner = takewhile(lambda place: place != (first.function, first.file), oom.functions)
    return {name for name, _ in inner}


def _dimensions(place: ProgramLine, error: BaseException) -> int:
    """Of the first argument of a call that failed, by the variables of its function."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if (frame.f_code.co_filename, line) == (place.file, place.line):
            with suppress(Exception):
                value = locals_of(frame).get(_first_argument(place.source))
                return value.dim() if isinstance(value, torch.Tensor) else 0
            break
    return 0


def _is_near_product(place: ProgramLine) -> bool:
    lines = range(max(1, place.line - _NEAR), place.line + _NEAR + 1)
    near = " ".join(linecache.getline(place.file, line) for line in lines)
    return any(product in near for product in _PRODUCTS)


def _first_argument(source: str) -> str:
    """The variable that a line gives to attention first, empty if it is none."""
    for text in (source, source.partition("=")[2].strip()):
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Call(func=function, args=[ast.Name(id=name), *_]):
                        if ast.unparse(function).endswith(_ATTENTION):
                            return name
    return ""
