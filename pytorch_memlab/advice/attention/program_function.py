"""A function of a program: its statements, and the variables that they read."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements_in(body: list[ast.stmt], condition: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Statements in order, also those under ``if``, with the condition."""
    for statement in body:
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            yield from statements_in(statement.body, test)
            yield from statements_in(statement.orelse, f"not ({test})")
        elif isinstance(statement, ast.With):
            yield from statements_in(statement.body, condition)
        else:
            yield statement, condition


def names_after(function: ast.FunctionDef, last: ast.stmt) -> set[str]:
    """Variables that a function reads after a statement."""
    end = last.end_lineno or 0
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > end
    }


def names_beside(statement: ast.stmt, node: ast.expr) -> set[str]:
    """Variables that a statement reads outside of an expression."""
    inside = {id(part) for part in ast.walk(node)}
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and id(part) not in inside
    }


def spans(statements: list[ast.stmt], line: int) -> bool:
    """True if a line lies among the statements, or right after them."""
    return not statements or min(node.lineno for node in statements) <= line
