"""The lines and the variables of a program that a change concerns, and lines with the change."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from .._common.frames.user_code import is_of_user
from .around_program import Edit

if TYPE_CHECKING:
    from torch import nn


_NEW_NAMES: Final = ("model", "net", "network", "made_model")
"""Names of a model that has none; the first that the file has not."""


class RunningLine(NamedTuple):
    """A line of the program that was running."""

    file: str
    number: int
    first: int  # number of the first line of its function; 0 or 1 of a module


def _user_frames() -> list[FrameType]:
    """Frames of the program that run now, the innermost first."""
    running = traceback.walk_stack(sys._getframe(1))
    return [frame for frame, _ in running if is_of_user(frame.f_code.co_filename)]


def user_lines() -> tuple[RunningLine, ...]:
    """Lines of the program that run now, the innermost first."""
    return tuple(map(_line_of, _user_frames()))


def runs_module(name: str) -> bool:
    """True if a function of a module is running."""
    running = traceback.walk_stack(sys._getframe(1))
    return any(frame.f_globals.get("__name__") == name for frame, _ in running)


def _line_of(frame: FrameType) -> RunningLine:
    return RunningLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_firstlineno)


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """A variable that a model is in."""

    name: str  # such as ``model`` or ``self.net``
    line: RunningLine | None
    # class of a model without a variable, which the statement of the line makes
    made_of: str = ""

    def with_code(self, lines: Sequence[str]) -> Edit | None:
        """Code that follows the assignment of the variable; None if that is not found."""
        if self.line is None:
            return None
        if self.made_of:
            return _assigned_first(self.line, self.made_of, self.name, lines)
        return after_assignment(self.line, self.name, lines)


def model_variable(model: nn.Module) -> ModelVariable:
    """The variable that a running function of the program has a model in."""
    variables = [
        variable
        for frame in _user_frames()
        for variable in (*_own(frame, model), *_global(frame, model))
    ]
    made = [variable for line in user_lines() for variable in _made_in(line, type(model).__name__)]
    assigned = [
        variable for variable in (*variables, *made) if variable.with_code(["pass"]) is not None
    ]
    return next(iter(assigned or variables), ModelVariable("model", None))


def _made_in(line: RunningLine, kind: str) -> Iterator[ModelVariable]:
    """A variable for a model that the running statement makes, or the only one of its file."""
    tree = _tree(line.file)
    places = [
        RunningLine(line.file, call.lineno, _function_around(tree, call.lineno))
        for call in _calls_of(tree, kind)
    ]
    running = _path_to(line)[-1:]
    chosen = [place for place in places if _path_to(place)[-1:] == running] or places
    if len(chosen) != 1:
        return
    match _path_to(chosen[0])[-1]:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value) if (
            value in _calls_of(tree, kind)
        ):
            yield ModelVariable(name, chosen[0])
        case _:
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            for name in [name for name in _NEW_NAMES if name not in used][:1]:
                yield ModelVariable(name, chosen[0], kind)


def _calls_of(node: ast.AST, name: str) -> list[ast.Call]:
    return [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and getattr(part.func, "attr", getattr(part.func, "id", "")) == name
    ]


def functions_around(tree: ast.AST, number: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that a line is in, in no order."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= number <= _end(node)
    ]


def _function_around(tree: ast.Module, number: int) -> int:
    """The first line of the innermost function that a line is in; 0 of a module."""
    return max(map(_first, functions_around(tree, number)), default=0)


def _own(frame: FrameType, model: nn.Module) -> Iterator[ModelVariable]:
    """Variables of a function, and attributes of its object."""
    from ..reporter.names import locals_of

    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    variables = locals_of(frame) if is_function else dict(frame.f_locals)
    line = _line_of(frame)
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
        line = RunningLine(frame.f_code.co_filename, sys.maxsize, 0)
        for name, value in list(frame.f_globals.items()):
            if value is model:
                yield ModelVariable(name, line)


def with_keywords(line: RunningLine, callee: str, keywords: Mapping[str, str]) -> Edit | None:
    calls = [
        call
        for call in _calls_of(_tree(line.file), callee)
        if call.lineno <= line.number <= _end(call)
    ]
    if len(calls) != 1:
        return None
    call = calls[0]
    changes: list[tuple[int, int, int, str]] = []
    added = ""
    for name, value in keywords.items():
        values = [keyword.value for keyword in call.keywords if keyword.arg == name]
        if values:
            if values[0].lineno != _end(values[0]):
                return None
            changes.append(
                (_end(values[0]), values[0].col_offset, values[0].end_col_offset or 0, value)
            )
        else:
            added += f", {name}={value}"
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if added and arguments:
        last = max(arguments, key=lambda node: (_end(node), node.end_col_offset or 0))
        end = last.end_col_offset or 0
        changes.append((_end(last), end, end, added))
    elif added:
        end = (call.end_col_offset or 1) - 1
        changes.append((_end(call), end, end, added.removeprefix(", ")))
    return _changed(line.file, call, changes)


def before_statement(line: RunningLine, new: Sequence[str]) -> Edit | None:
    """New lines before the statement that a line is part of."""
    path = _path_to(line)
    return _inserted(line.file, path[-1].lineno, path[-1].col_offset, new) if path else None


def after_assignment(line: RunningLine, name: str, new: Sequence[str]) -> Edit | None:
    """New lines after the last statement before a line that makes the value of a variable."""
    # A statement makes it if it calls something. One that only gives it another name, such as ``net
    # = self.net``, may run many times.
    tree = _tree(line.file)
    scope = _scope(tree, line)
    if name.startswith("self."):
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        around = [
            definition
            for definition in classes
            if definition.lineno <= line.number <= _end(definition)
        ]
        nodes = list(ast.walk(around[-1])) if around else []
    else:
        nodes = [node for node in _within(scope) if getattr(node, "lineno", 0) <= line.number]
    statements = [
        node
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and any(isinstance(part, ast.Call) for part in ast.walk(node))
        and any(ast.unparse(target) == name for target in _targets(node))
    ]
    if not statements:
        return None
    last = max(statements, key=lambda node: node.lineno)
    return _inserted(line.file, _end(last) + 1, last.col_offset, new)


def _assigned_first(line: RunningLine, kind: str, name: str, new: Sequence[str]) -> Edit | None:
    """A statement whose only call of a class is made before it, under a name, with new lines."""
    path = _path_to(line)
    if not path or hasattr(path[-1], "body"):
        return None
    statement = path[-1]
    calls = [call for call in _calls_of(statement, kind) if call in [*_at_once(statement)]]
    if len(calls) != 1:
        return None
    [call] = calls
    lines = [text.encode() for text in _lines(line.file, statement.lineno, _end(statement))]
    first, last = call.lineno - statement.lineno, _end(call) - statement.lineno
    before, after = lines[first][: call.col_offset], lines[last][call.end_col_offset :]
    lines[first : last + 1] = [before + name.encode() + after]
    head = [f"{name} = {ast.unparse(call)}", *new]
    text = [" " * statement.col_offset + row for row in head]
    text += [row.decode() for row in lines]
    return _if_valid(Edit(line.file, statement.lineno, _end(statement), tuple(text)))


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a statement that run once with it, not later or again."""
    again = (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.IfExp)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, again):
            yield child
            yield from _at_once(child)


def after_imports(file: str, new: Sequence[str]) -> Edit | None:
    """New lines before the first statement of a file that is no import."""
    for node in _tree(file).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_docstring and not isinstance(node, (ast.Import, ast.ImportFrom)):
            return _inserted(file, _first(node), 0, new)
    return None


def around_statements(
    first: RunningLine, after: RunningLine | None, opening: Sequence[str]
) -> Edit | None:
    """Statements within a ``with`` statement."""
    begin = _path_to(first)
    if not begin:
        return None
    if after is None:
        return _indented(first.file, begin[-1], begin[-1], opening)
    end = _path_to(after)
    for block in blocks(_tree(first.file)):
        inside = [node for node in block if node in begin or node in end]
        if len(inside) == 2 and inside[0] in begin and inside[1] is end[-1]:
            last = block[block.index(inside[1]) - 1]
            return _indented(first.file, inside[0], last, opening)
    return None


def indentation(text: str) -> str:
    """The space that a line begins with.

    >>> indentation("    return x")
    '    '
    """
    return text[: len(text) - len(text.lstrip())].rstrip("\n")


def has_name(line: RunningLine, name: str) -> bool:
    """True if the file of a line imports a module under its own name, at the top level."""
    return any(
        isinstance(node, ast.Import)
        and any((alias.asname or alias.name) == name for alias in node.names)
        for node in _tree(line.file).body
    )


def _tree(file: str) -> ast.Module:
    return parsed("".join(linecache.getlines(file)))


@lru_cache(maxsize=32)
def parsed(text: str) -> ast.Module:
    """A program; nothing for what is no Python. Nodes of one text are the same each time."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _if_valid(edit: Edit) -> Edit | None:
    """An edit after which the file is a program."""
    lines = list(linecache.getlines(edit.file))
    lines[edit.first - 1 : edit.last] = [f"{line}\n" for line in edit.lines]
    return edit if parsed("".join(lines)).body else None


def _first(node: ast.stmt) -> int:
    """The line of a statement, or of its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _end(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[ast.expr]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from target.elts
        else:
            yield target


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements, as they follow each other."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _scope(tree: ast.Module, line: RunningLine) -> ast.AST:
    """The function that a line is of, or the module."""
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and _first(node) == line.first
            and node.lineno <= line.number <= _end(node)
        ):
            return node
    return tree


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function or module itself, not of a function or class in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _within(child)


def _path_to(line: RunningLine) -> list[ast.stmt]:
    """The statements that a line is in, the outermost first."""
    return [
        node
        for node in ast.walk(_tree(line.file))
        if isinstance(node, ast.stmt) and node.lineno <= line.number <= _end(node)
    ]


def _inserted(file: str, number: int, column: int, new: Sequence[str]) -> Edit | None:
    return _if_valid(Edit(file, number, number - 1, tuple(" " * column + text for text in new)))


def _indented(file: str, first: ast.stmt, last: ast.stmt, opening: Sequence[str]) -> Edit | None:
    lines = _lines(file, first.lineno, _end(last))
    head = [" " * first.col_offset + text for text in opening]
    body = [f"    {text}" if text.strip() else text for text in lines]
    return _if_valid(Edit(file, first.lineno, _end(last), (*head, *body)))


def _changed(
    file: str, call: ast.Call, changes: Sequence[tuple[int, int, int, str]]
) -> Edit | None:
    """The lines of a call, with other text at some columns, which count bytes."""
    lines = [text.encode() for text in _lines(file, call.lineno, _end(call))]
    for number, begin, end, text in sorted(changes, reverse=True):
        index = number - call.lineno
        lines[index] = lines[index][:begin] + text.encode() + lines[index][end:]
    return _if_valid(Edit(file, call.lineno, _end(call), tuple(text.decode() for text in lines)))


def _lines(file: str, first: int, last: int) -> list[str]:
    return [linecache.getline(file, number).rstrip("\r\n") for number in range(first, last + 1)]
