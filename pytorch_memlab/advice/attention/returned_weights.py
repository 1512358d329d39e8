"""Weights that a function returns beside the output, and that no caller reads."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from ..rewriting import function_at, name_of_call
from .written_call import FusedAttention


@dataclass(frozen=True, slots=True)
class ReturnedWeights:
    """The statement of a function that returns weights beside the output."""

    node: ast.Return
    names: tuple[ast.Name, ...]


def returned_for_nothing(
    tree: ast.Module, function: ast.FunctionDef, statement: ast.stmt, names: set[str]
) -> ReturnedWeights | None:
    """The place where weights are returned; None if anything reads them, or may do so."""
    reads = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in names
        and node.lineno >= statement.lineno
    ]
    returns = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.lineno >= statement.lineno
    ]
    if len(returns) != 1 or not isinstance(returns[0].value, ast.Tuple):
        return None
    [node], parts = returns, returns[0].value.elts
    weights = [part for part in parts if isinstance(part, ast.Name) and part.id in names]
    product = {id(part) for part in ast.walk(statement)} if statement is not node else set[int]()
    others = [read for read in reads if read not in weights and id(read) not in product]
    if statement is node:  # one of them is the factor of the product that stands there
        others = [other for other in others if not any(_has_part(part, other) for part in parts)]
    places = [index for index, part in enumerate(parts) if part in weights]
    if others or not places or not _are_unused(tree, function, places, len(parts)):
        return None
    return ReturnedWeights(node, tuple(weights))


def _has_part(whole: ast.AST, part: ast.AST) -> bool:
    return any(node is part for node in ast.walk(whole))


def _are_unused(tree: ast.Module, function: ast.FunctionDef, places: list[int], count: int) -> bool:
    """True if every call in the file drops some of the results of a function."""
    names = {function.name}
    if function.name == "forward":
        classes = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and function in node.body
        ]
        names = {
            _last_name(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and name_of_call(node.value) in {definition.name for definition in classes}
            for target in node.targets
        }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of_call(node) in names - {""}
    ]
    unpacked: dict[int, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call) if len(
                targets
            ) == count and not any(isinstance(target, ast.Starred) for target in targets):
                unpacked[id(call)] = [targets[place] for place in places]
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int() as place)):
                if place not in places and place >= 0:
                    unpacked[id(call)] = []
    return bool(calls) and all(
        id(call) in unpacked and not any(_is_read(tree, target) for target in unpacked[id(call)])
        for call in calls
    )


def _is_read(tree: ast.Module, target: ast.expr) -> bool:
    """True if anything reads a variable of a function, or an attribute of this name in a file."""
    is_variable = isinstance(target, ast.Name)
    function = function_at(tree, target.lineno) if is_variable else None
    return any(
        isinstance(node, ast.Name if is_variable else ast.Attribute)
        and isinstance(getattr(node, "ctx", None), ast.Load)
        and _last_name(node) == _last_name(target)
        for node in ast.walk(function or tree)
        if isinstance(node, ast.expr)
    )


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def without_returned_weights(
    written: FusedAttention, lines: list[str], statement: ast.stmt, returned: ReturnedWeights
) -> FusedAttention | None:
    """The edit, with a return of None in place of weights that nothing reads."""
    edit, node = written.edit, returned.node
    end = node.end_lineno or node.lineno
    if node.lineno != end or any(name.lineno != node.lineno for name in returned.names):
        return None
    new = list(edit.lines)
    if node is not statement:
        new += lines[edit.last : end]
    names = "|".join(name.id for name in returned.names)
    # Its own arguments are no weights: the call has the query, the key and the value.
    new[-1] = re.sub(rf"(?<=[ ,(])({names})(?=\s*(,|\)|$))", "None", new[-1])
    return FusedAttention(replace(edit, last=end, lines=tuple(new)))
