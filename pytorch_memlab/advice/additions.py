"""Statements that put values into containers: where they are, and how they keep less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..history.out_of_memory import OutOfMemory, ProgramLine, TensorGroup
from .changes import EditedSource
from .rewriting import (
    Rewriting,
    all_rewritings,
    changed_source,
    function_at,
    last_name,
    nodes_of,
    rewritings,
    with_method,
)

_ADDERS = {"append": 0, "appendleft": 0, "add": 0, "put": 0, "extend": 0, "insert": 1}
"""Methods of containers, with the place of the value among their arguments."""
_KEY = re.compile(r"\[(?:'([^']*)'|(\d+))\]|\.(\w+)")


@dataclass(frozen=True, slots=True)
class AddingStatement:
    """A statement that puts a value into a container."""

    file: Rewriting
    node: ast.stmt
    container: ast.expr
    value: ast.expr
    levels: int = 1  # of indices from the variable to the value

    @property
    def line(self) -> int:
        return self.node.lineno


def adding_statement(oom: OutOfMemory, group: TensorGroup) -> AddingStatement | None:
    """The statement that fills a container; None if it is not known which one that is."""
    # It is the one whose container has the name that leads to the tensors. A container that has
    # another name there, such as a parameter, is filled by the only statement that keeps tensors.
    # Other modules are searched where no file of the program names it.
    name = re.split(r"[.\[]", group.name)[-1] if group.name else ""
    keys = {key for path in _keys_of(oom, group) for key in path}

    def names_it(statement: AddingStatement) -> bool:
        return last_name(statement.container) == name and _has_key(statement.container, keys)

    statements = [statement for file in rewritings(oom) for statement in _statements(file)]
    named = [statement for statement in statements if names_it(statement)]
    if not named:
        modules = all_rewritings(oom)
        named = [
            statement for file in modules for statement in _statements(file) if names_it(statement)
        ]
    others = [statement for statement in statements if not _is_number(statement.value)]
    is_other = not named and len(others) == 1 and group.tensors > 2
    return named[-1] if named else others[0] if is_other else None


def adding_statements(file: Rewriting, within: ast.stmt) -> list[AddingStatement]:
    """The statements in a loop or another statement that put one value into a container."""
    inside = {id(node) for node in nodes_of(within, ast.stmt)}
    return [statement for statement in _statements(file) if id(statement.node) in inside]


def adding_statement_at(place: ProgramLine) -> AddingStatement | None:
    """The statement of a line, if it fills a container."""
    statements = _statements(Rewriting(place.file))
    return next((statement for statement in statements if statement.line == place.line), None)


def keeping_less(
    oom: OutOfMemory, group: TensorGroup, method: str, *, is_mixed: bool = False
) -> EditedSource | None:
    """The statement with the result of a method of what it keeps; of its tensors, if mixed."""
    adding = adding_statement(oom, group)
    if adding is None:
        return None
    keep_less(oom, group, adding, method, is_mixed=is_mixed)
    return changed_source(adding.file)


def keep_less(
    oom: OutOfMemory,
    group: TensorGroup,
    adding: AddingStatement,
    method: str,
    *,
    is_mixed: bool = False,
) -> None:
    """Change a statement in its file, so that it keeps the result of a method."""
    own = last_name(adding.container)
    paths = _keys_of(oom, group)
    if any(own in path for path in paths):  # the container is a part of what the group is named by
        paths = {path[path.index(own) + 1 :] for path in paths if own in path}
    inner = {path[adding.levels] for path in paths if len(path) > adding.levels}
    if isinstance(adding.value, ast.Call) and _is_object(adding.value, inner):
        _replace_arguments(adding.file, adding.value, method, inner)
        return
    parts = _parts_of(adding.value, inner)
    if parts is None:
        adding.file.replace(adding.value, _with_parts(ast.unparse(adding.value), method, inner))
        adding.file.ensure_import("torch")
    for value in parts or ():
        text = with_method(value, method)
        if is_mixed:
            text = f"({_if_tensor(ast.unparse(value), text)})"
            adding.file.ensure_import("torch")
        adding.file.replace(value, text)


def _is_object(call: ast.Call, keys: set[str]) -> bool:
    """True for a new object, whose attributes are the tensors, such as a named tuple."""
    is_class = last_name(call.func)[:1].isupper()
    return is_class and bool(keys) and not any(key.isdigit() for key in keys)


def _replace_arguments(file: Rewriting, call: ast.Call, method: str, keys: set[str]) -> None:
    """The object of a call with the results of a method of the tensors among its arguments."""
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            text = f"*({on_parts(method, ast.unparse(argument.value))})"
            file.replace(argument, text)
            file.ensure_import("torch")
        elif last_name(argument) in keys:
            file.replace(argument, with_method(argument, method))
        elif isinstance(argument, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            value = ast.unparse(argument)
            file.replace(argument, _if_tensor(value, with_method(argument, method)))
            file.ensure_import("torch")
    for keyword in call.keywords:
        if keyword.arg in keys:
            file.replace(keyword.value, with_method(keyword.value, method))


def on_parts(method: str, container: str) -> str:
    """The parts of a container, with the results of a method of the tensors among them.

    >>> on_parts("cpu", "args")
    'part.cpu() if torch.is_tensor(part) else part for part in args'
    """
    return f"{_if_tensor('part', f'part.{method}()')} for part in {container}"


def filled_beside(oom: OutOfMemory, group: TensorGroup) -> list[TensorGroup]:
    """The other containers of tensors that the same function fills: what meets those of a group."""
    adding = adding_statement(oom, group)
    if adding is None:
        return []
    beside = []
    for other in oom.groups:
        filled = adding_statement(oom, other)
        if other is group or other.is_variable or filled is None or filled.line == adding.line:
            continue
        if _filling_function(filled) == _filling_function(adding):
            beside.append(other)
    return beside


def _filling_function(adding: AddingStatement) -> tuple[str, int]:
    """File of a statement that fills a container, and line of the function that it is in."""
    function = function_at(adding.file.tree, adding.line)
    return adding.file.file, 0 if function is None else function.lineno


def _if_tensor(value: str, text: str) -> str:
    return f"{text} if torch.is_tensor({value}) else {value}"


def _with_parts(container: str, method: str, keys: set[str]) -> str:
    """A tuple, a list or a dictionary with the results of a method of the tensors in it."""
    if all(key.isdigit() for key in keys):
        return f"tuple({on_parts(method, container)})"
    part = _if_tensor("part", f"part.{method}()")
    return f"{{key: {part} for key, part in {container}.items()}}"


def _statements(file: Rewriting) -> Iterator[AddingStatement]:
    for node in nodes_of(file.tree, ast.stmt):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method), args=args)):
                if method in _ADDERS and len(args) > _ADDERS[method]:
                    value = args[_ADDERS[method]]
                    levels = 1 + sum(1 for _ in nodes_of(owner, ast.Subscript))
                    if isinstance(owner, ast.Call) and last_name(owner.func) == "setdefault":
                        assert isinstance(owner.func, ast.Attribute)
                        owner = owner.func.value
                        levels += 1
                    if method == "extend":  # by the parts of the value
                        levels -= 1
                    yield AddingStatement(file, node, owner, value, levels)
            case ast.Assign(targets=[ast.Subscript(value=owner)], value=value):
                yield AddingStatement(file, node, owner, value)
            case ast.AugAssign(target=owner, op=ast.Add(), value=ast.List(elts=[value])) | (
                ast.Assign(
                    targets=[owner], value=ast.BinOp(op=ast.Add(), right=ast.List(elts=[value]))
                )
            ):
                yield AddingStatement(file, node, owner, value)
            case ast.Assign(
                targets=[owner],
                value=ast.ListComp(elt=value) | ast.DictComp(value=value),
            ):
                yield AddingStatement(file, node, owner, value)


def _is_number(value: ast.expr) -> bool:
    """True for what keeps no tensor on the GPU."""
    match value:
        case ast.Constant():
            return True
        case ast.Call(func=ast.Attribute(attr="item" | "cpu" | "numpy" | "tolist")):
            return True
        case ast.Call(func=ast.Name(id="int" | "float" | "len" | "str")):
            return True
    return False


def _has_key(container: ast.expr, keys: set[str]) -> bool:
    """False for a list of a dictionary under a key that leads to none of the tensors."""
    match container:
        case ast.Subscript(slice=ast.Constant(value=key)) if keys:
            return str(key) in keys
    return True


def _keys_of(oom: OutOfMemory, group: TensorGroup) -> set[tuple[str, ...]]:
    """Keys and indices behind the name of a container that lead to its tensors, in order."""
    names = [block.name for block in oom.blocks if block.name.startswith(group.name)]
    return {
        tuple(a or b or c for a, b, c in _KEY.findall(name[len(group.name) :])) for name in names
    }


def _parts_of(value: ast.expr, keys: set[str]) -> list[ast.expr] | None:
    """The parts of a value that are tensors; None for a container whose parts stand elsewhere."""
    match value:
        case ast.Dict(keys=names, values=values):
            parts = [
                part
                for key, part in zip(names, values, strict=True)
                if isinstance(key, ast.Constant) and str(key.value) in keys
            ]
        case ast.Tuple(elts=values) | ast.List(elts=values):
            parts = [part for index, part in enumerate(values) if str(index) in keys]
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords) if keywords:
            parts = [keyword.value for keyword in keywords if keyword.arg in keys]
        case _:
            return None if keys else [value]
    return parts or [value]
