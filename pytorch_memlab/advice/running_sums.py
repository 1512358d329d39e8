"""Statements that add a loss to a sum, and the backward pass of that sum."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..history.out_of_memory import OutOfMemory
from .rewriting import Rewriting, all_rewritings, function_at, last_name, nodes_of


@dataclass(frozen=True, slots=True)
class Addition:
    """A statement that adds to a sum."""

    file: Rewriting
    node: ast.stmt
    sum: str  # its source
    added: ast.expr
    backward: ast.Call | None  # of the sum, in the same function

    @property
    def line(self) -> int:
        return self.node.lineno


def addition_to(oom: OutOfMemory, name: str) -> Addition | None:
    """The statement that adds to a sum; None if none does."""
    own = name.rpartition(".")[2]
    for file in all_rewritings(oom):
        for node in nodes_of(file.tree, ast.stmt):
            match node:
                case ast.AugAssign(target=target, op=ast.Add(), value=added):
                    pass
                case ast.Assign(
                    targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=right)
                ):
                    # A sum of other values, such as of the parts of one loss, is no addition to it.
                    operands = [left, right]
                    others = [part for part in operands if ast.unparse(part) != ast.unparse(target)]
                    if len(others) != 1:
                        continue
                    [added] = others
                case _:
                    continue
            if last_name(target) == own:
                text = ast.unparse(target)
                return Addition(file, node, text, added, _backward_of(file.tree, node, text))
    return None


def _backward_of(tree: ast.Module, addition: ast.stmt, sum_name: str) -> ast.Call | None:
    """The call of ``backward`` that has the sum in it, in the function of the addition."""
    own = function_at(tree, addition.lineno)
    for call in nodes_of(own or tree, ast.Call):
        is_backward = isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        if (
            is_backward
            and sum_name in expressions_in(call)
            and function_at(tree, call.lineno) is own
        ):
            return call
    return None


def expressions_in(node: ast.AST) -> set[str]:
    """The source of all expressions in a node."""
    return {ast.unparse(part) for part in nodes_of(node, ast.expr)}
