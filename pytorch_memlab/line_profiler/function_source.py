"""The lines of a function, checked to be its own: a file may have changed since it was loaded."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionSource(NamedTuple):
    """Lines of a function.

    Args:
        first_line: number of the first one, as the function's code counts.
        lines: without their ends; None where there are none to be had.
        is_stale: whether there are none since the file has changed.
    """

    first_line: int
    lines: tuple[str, ...] | None
    is_stale: bool = False


def function_source(code: CodeType, qual_name: str) -> FunctionSource:
    """Find the source of a function.

    IPython's ``%autoreload`` compiles a function that was edited by itself, from line 1 on.

    Args:
        code: of the function.
        qual_name: where its file defines it, should that not be where its code says.
    """
    try:
        found, first_line = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError, SyntaxError):
        return FunctionSource(code.co_firstlineno, None)
    lines = tuple(line.rstrip("\r\n") for line in found)
    if _defines(lines, code.co_name):
        return FunctionSource(first_line, lines)
    for candidate in _definitions(code.co_filename, qual_name):
        if _has_lines_of(candidate, code):
            return FunctionSource(code.co_firstlineno, candidate)
    return FunctionSource(code.co_firstlineno, None, is_stale=True)


def _defines(lines: tuple[str, ...], name: str) -> bool:
    """Whether a block of lines is a definition of this name, decorators included."""
    if not name.isidentifier():
        return any("lambda" in line for line in lines)
    head = re.compile(rf"\s*(async\s+)?def\s+{name}\b")
    return bool(head.match(lines[0])) or (
        lines[0].lstrip().startswith("@") and any(map(head.match, lines))
    )


def _definitions(filename: str, qual_name: str) -> Iterator[tuple[str, ...]]:
    """The lines of what a file defines by this name, as they stand and as Python prints them."""
    text = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in _named(tree, qual_name.replace(".<locals>", "").split(".")):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield tuple(text.splitlines()[first - 1 : node.end_lineno])
        yield tuple(ast.unparse(node).splitlines())


def _named(tree: ast.AST, path: list[str]) -> Iterator[_Definition]:
    for node in ast.iter_child_nodes(tree):
        is_definition = isinstance(node, _Definition | ast.ClassDef)
        if not is_definition:
            yield from _named(node, path)
        elif node.name == path[0]:  # type: ignore[attr-defined]
            if path[1:]:
                yield from _named(node, path[1:])
            elif isinstance(node, _Definition):
                yield node


def _has_lines_of(lines: tuple[str, ...], code: CodeType) -> bool:
    """Whether source compiles to code on the same lines."""
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
