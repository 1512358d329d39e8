"""Functions that a piece of source defines: known before it runs, as constants of its code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from pytorch_memlab.line_profiler.source_block import source_block


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as the program defines it."""

    qual_name: str  # its ``__qualname__``
    code: CodeType  # its code object


def definitions(code: CodeType) -> list[Definition]:
    r"""Every ``def`` of a program, those in classes and in other functions included.

    Args:
        code: of the program's top level.

    Returns:
        In the order of the source. Lambdas and comprehensions belong to the line they are in.

    >>> code = compile("class A:\n def f(self): pass\ndef g(): return lambda: 0", "x", "exec")
    >>> [definition.qual_name for definition in definitions(code)]
    ['A.f', 'g']
    """
    return list(_definitions(code, ""))


def lines_of(code: CodeType, source: str) -> list[str]:
    """The lines of a function without their ends, from the code's first line on."""
    block = source_block(_split(source), code.co_firstlineno - 1)
    return [line.rstrip("\n") for line in block]


@functools.lru_cache(maxsize=1)
def _split(source: str) -> list[str]:
    """All lines of a program, asked for once for each of its functions."""
    return source.splitlines(keepends=True)


def _definitions(code: CodeType, prefix: str) -> Iterator[Definition]:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_name.startswith("<generic parameters of"):
            yield from _definitions(constant, prefix)
        elif constant.co_name.isidentifier() and constant.co_name != "__annotate__":
            qual_name = prefix + constant.co_name
            is_function = bool(constant.co_flags & inspect.CO_NEWLOCALS)
            if is_function:
                yield Definition(qual_name, constant)
            inner = f"{qual_name}.<locals>." if is_function else f"{qual_name}."
            yield from _definitions(constant, inner)
