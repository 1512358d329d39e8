"""The lines of a function, checked to be its own: a file may have changed since it was loaded."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import CodeType
from typing import NamedTuple, cast

from .._common.text.source_lines import source_lines

_HEAD = re.compile(r"\s*(?:async\s+)?def\s+([^\s(\[\\]+)")
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionSource(NamedTuple):
    """Lines of a function."""

    first_line: int  # number of the first one, as the function's code counts
    lines: tuple[str, ...] | None  # without their ends; None where there are none to be had
    is_stale: bool = False  # whether there are none since the file has changed


def function_source(code: CodeType, qual_name: str) -> FunctionSource:
    """Find the source of a function, where its code says or where its file defines its name."""
    # IPython's ``%autoreload`` compiles a function that was edited by itself, from line 1 on.
    try:
        source_lines, place = inspect.findsource(code)
        lines = tuple(line.rstrip("\r\n") for line in source_block(source_lines, place))
    except (OSError, TypeError, IndexError, SyntaxError):
        return FunctionSource(code.co_firstlineno, None)
    if _defines(lines, code.co_name):
        return FunctionSource(place + 1, lines)
    for candidate in _definitions(code.co_filename, qual_name):
        if _has_lines_of(candidate, code):
            return FunctionSource(code.co_firstlineno, candidate)
    return FunctionSource(code.co_firstlineno, None, is_stale=True)


def _defines(lines: tuple[str, ...], name: str) -> bool:
    """True if a block of lines is a definition of this name, decorators included."""
    if not name.isidentifier():
        return any("lambda" in line for line in lines)
    heads = lines if lines[0].lstrip().startswith("@") else lines[:1]
    return any(head[1] == name for head in map(_HEAD.match, heads) if head)


def begins_definition(line: str, name: str) -> bool:
    """True if a line is the first of a definition of this name, or a decorator."""
    head = _HEAD.match(line)
    return head[1] == name if head else line.lstrip().startswith("@")


def _definitions(filename: str, qual_name: str) -> Iterator[tuple[str, ...]]:
    """The lines of what a file defines by this name, as they stand and as Python prints them."""
    file = _file("".join(linecache.getlines(filename)))
    for node in file.named.get(qual_name.replace(".<locals>", ""), ()):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield tuple(file.lines[first - 1 : node.end_lineno])
        yield tuple(ast.unparse(node).splitlines())


def defined_in(text: str) -> Iterator[tuple[str, Definition]]:
    """The functions that the text of a file defines, with their names as people type them."""
    for name, nodes in _file(text).named.items():
        for node in nodes:
            yield name, node


class _File:
    """The functions that a file defines now."""

    def __init__(self, text: str) -> None:
        self.lines = source_lines(text)
        self.named: dict[str, list[Definition]] = {}
        with suppress(SyntaxError, ValueError):
            for name, node in _named(ast.parse(text), ""):
                self.named.setdefault(name, []).append(node)


@functools.lru_cache(maxsize=1)
def _file(text: str) -> _File:
    """The file of a text: a module asks for the same one for each of its functions."""
    return _File(text)


def _named(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Each function in a tree with its name, after those of the classes and functions around it."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, Definition | ast.ClassDef):
            yield from _named(node, prefix)
            continue
        name = prefix + node.name
        if isinstance(node, Definition):
            yield name, node
        yield from _named(node, f"{name}.")


def _has_lines_of(lines: tuple[str, ...], code: CodeType) -> bool:
    """True if source compiles to code on the same lines."""
    try:
        source = textwrap.dedent("\n".join(lines))
        whole = compile(source, "<source>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return any(
        isinstance(constant, type(code))
        and constant.co_name == code.co_name
        and _offsets(constant) == _offsets(code)
        for constant in whole.co_consts
    )


def _offsets(code: CodeType) -> set[int]:
    numbers = (line for _, _, line in code.co_lines() if line is not None)
    return {line - code.co_firstlineno for line in numbers}


def source_block(lines: Sequence[str], first: int) -> Sequence[str]:
    """The lines of the definition that begins at a place in a file; no other line is copied."""
    return inspect.getblock(cast(Sequence[str], _Rest(lines, first)))


class _Rest:
    """The lines from one of them on; a slice of a list would copy them for each function."""

    def __init__(self, lines: Sequence[str], first: int) -> None:
        self._lines = lines
        self._places = range(first, len(lines))

    def __iter__(self) -> Iterator[str]:
        return map(self._lines.__getitem__, self._places)

    def __getitem__(self, part: slice) -> list[str]:
        return [self._lines[place] for place in self._places[part]]
