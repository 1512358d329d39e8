"""Products of matrices, in the forms that programs write."""

from __future__ import annotations

import ast
import re
from typing import Final

_PRODUCTS: Final = ("matmul", "bmm")


def operands_of_product(node: ast.AST) -> tuple[ast.expr, ast.expr, str] | None:
    """The operands of a product of matrices, and what its result lacks for the written layout."""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return left, right, ""
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[factor]) if (
            name in _PRODUCTS
        ):
            return value, factor, ""
        case ast.Call(func=ast.Attribute(attr=name), args=[left, right]) if name in _PRODUCTS:
            return left, right, ""
        case ast.Call(
            func=ast.Attribute(attr="einsum") | ast.Name(id="einsum"),
            args=[ast.Constant(value=str() as equation), *operands],
        ):
            match operands:
                case [ast.List(elts=[left, right])] | [left, right]:
                    return _of_einsum(equation.replace(" ", ""), left, right)
    return None


def _of_einsum(
    equation: str, left: ast.expr, right: ast.expr
) -> tuple[ast.expr, ast.expr, str] | None:
    """A product over the last dimension of the left operand, in any layout of the others."""
    match = re.fullmatch(r"(\w+),(\w+)->(\w+)", equation)
    if match is None:
        return None
    first, second, result = match.groups()
    if not first or len({len(first), len(second), len(result)}) != 1:
        return None
    summed = set(first) & set(second) - set(result)
    rows = [letter for letter in first if letter in result and letter not in second]
    columns = [letter for letter in second if letter in result and letter not in first]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1:
        return None
    [inner], [row], [column] = summed, rows, columns
    batch = [letter for letter in result if letter not in (row, column)]
    plain = "".join([*batch, row, column])
    after = "" if result == plain else _permuted("", plain, result)
    return (
        _as_expression(_permuted(_text_of(left), first, "".join([*batch, row, inner]))),
        _as_expression(_permuted(_text_of(right), second, "".join([*batch, inner, column]))),
        after,
    )


def _text_of(node: ast.expr) -> str:
    return of_call(ast.unparse(node))


def _as_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _permuted(text: str, old: str, new: str) -> str:
    """A tensor with the dimensions of some letters in another order."""
    places = [old.index(letter) for letter in new]
    moved = [index for index, place in enumerate(places) if index != place]
    if not moved:
        return text
    if len(moved) == 2:
        axis, other = moved
        if other == len(old) - 1 and axis == other - 1:
            return f"{text}.transpose(-2, -1)"
        return f"{text}.transpose({axis}, {other})"
    return f"{text}.permute({', '.join(map(str, places))})"


def untransposed(node: ast.expr, *, has_heads: bool) -> ast.expr | None:
    match node:
        case ast.Attribute(value=value, attr="mT"):
            return value
        case ast.Call(func=ast.Attribute(value=value, attr="transpose"), args=[axis, other]):
            pair = sorted((ast.unparse(axis), ast.unparse(other)))
            if pair in (["-1", "-2"], ["2", "3"] if has_heads else ["1", "2"]):
                return value
        case ast.Call(func=ast.Attribute(value=value, attr="permute"), args=args):
            places = [ast.unparse(arg) for arg in args]
            if places in (["0", "1", "3", "2"], ["0", "2", "1"]):
                return value
            if len(places) == 4 and all(map(str.isdigit, places)):  # the heads are moved too
                places[-2:] = places[:-3:-1]
                return _as_expression(f"{_text_of(value)}.permute({', '.join(places)})")
        case ast.Call(func=ast.Attribute(attr="transpose")):
            return None
        case ast.Name(id=name):  # transposed by a statement before
            return _as_expression(f"{name}.transpose(-2, -1)")
    return None


def of_call(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+(\(.*\)|\[.*\])?", text) else f"({text})"
