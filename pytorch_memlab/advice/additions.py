"""Statements that put values into containers: where they are, and how they keep less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..history.out_of_memory import OutOfMemory, Place, TensorGroup
from .changes import EditedSource
from .rewriting import Rewriting, changed_source, last_name, nodes_of, rewritings, with_method

_ADDERS = {"append": 0, "appendleft": 0, "add": 0, "put": 0, "extend": 0, "insert": 1}
"""Methods of containers, with the place of the value among their arguments."""
_KEY = re.compile(r"\[(?:'([^']*)'|(\d+))\]")


@dataclass(frozen=True, slots=True)
class AddingStatement:
    """A statement that puts a value into a container."""

    file: Rewriting
    node: ast.stmt
    container: ast.expr
    value: ast.expr

    @property
    def line(self) -> int:
        return self.node.lineno


def adding_statement(oom: OutOfMemory, group: TensorGroup) -> AddingStatement | None:
    """The statement that fills a container; None if it is not known which one that is.

    It is the one whose container has the name that leads to the tensors. A container that has
    another name there, such as a parameter, is filled by the only statement that keeps tensors.
    """
    name = re.split(r"[.\[]", group.name)[-1] if group.name else ""
    all_of_them = [one for file in rewritings(oom) for one in _statements(file)]
    keys = _keys_of(oom, group)
    named = [
        one
        for one in all_of_them
        if last_name(one.container) == name and _has_key(one.container, keys)
    ]
    others = [one for one in all_of_them if not _is_number(one.value)]
    is_other = not named and len(others) == 1 and group.tensors > 2
    return named[-1] if named else others[0] if is_other else None


def adding_statement_at(place: Place) -> AddingStatement | None:
    """The statement of a line, if it fills a container."""
    statements = _statements(Rewriting(place.file))
    return next((one for one in statements if one.line == place.line), None)


def keeping_less(
    oom: OutOfMemory, group: TensorGroup, method: str, *, is_mixed: bool = False
) -> EditedSource | None:
    """The statement with the result of a method of what it keeps; of its tensors, if mixed."""
    adding = adding_statement(oom, group)
    if adding is None:
        return None
    for value in _tensors_of(adding.value, _keys_of(oom, group)):
        text = with_method(value, method)
        if is_mixed:
            kept = ast.unparse(value)
            text = f"({text} if torch.is_tensor({kept}) else {kept})"
            adding.file.ensure_import("torch")
        adding.file.replace(value, text)
    return changed_source(adding.file)


def _statements(file: Rewriting) -> Iterator[AddingStatement]:
    for node in nodes_of(file.tree, ast.stmt):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method), args=args)):
                if method in _ADDERS and len(args) > _ADDERS[method]:
                    value = args[_ADDERS[method]]
                    if isinstance(owner, ast.Call) and last_name(owner.func) == "setdefault":
                        assert isinstance(owner.func, ast.Attribute)
                        owner = owner.func.value
                    yield AddingStatement(file, node, owner, value)
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


def _keys_of(oom: OutOfMemory, group: TensorGroup) -> set[str]:
    """Keys and indices behind the name of a container, of its tensors."""
    names = [block.name for block in oom.blocks if block.name.startswith(group.name)]
    return {a or b for name in names for a, b in _KEY.findall(name[len(group.name) :])}


def _tensors_of(value: ast.expr, keys: set[str]) -> list[ast.expr]:
    """The parts of a value that are tensors."""
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
            parts = [one.value for one in keywords if one.arg in keys]
        case _:
            return [value]
    return parts or [value]
