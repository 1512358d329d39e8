"""Masks: what they keep of the scores."""

from __future__ import annotations

import ast
import re
from typing import Final

from .definitions import Definitions

OF_SAME_VALUES: Final = ("to", "float", "half", "bfloat16", "type_as", "contiguous", "clone")
"""Methods that leave the values of a tensor as they are, but for rounding."""
_UNCHANGED: Final = (*OF_SAME_VALUES, "view", "bool", "unsqueeze", "expand", "reshape")
_LOWEST: Final = -1000.0
"""A score below this has no weight after a softmax in any floating-point format."""


def kept(mask: ast.expr, *, keeps: bool) -> str:
    """The mask that is True where attention is allowed."""
    match mask:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            base = ast.unparse(left)
            return f"({base} == 0)" if keeps else f"({base} != 0)"
        case ast.UnaryOp(op=ast.Invert(), operand=operand) if not keeps:
            return ast.unparse(operand)
        case ast.Call(func=ast.Attribute(value=value, attr="logical_not"), args=[]) if not keeps:
            return ast.unparse(value)
    text = ast.unparse(mask)
    is_simple = isinstance(mask, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    if keeps:
        return text
    return f"~{text}" if is_simple else f"~({text})"


def is_causal(mask: ast.expr, definitions: Definitions, *, keeps: bool) -> bool:
    """True if a mask allows just what comes before."""
    match mask:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return not keeps and _triangle(left, definitions) == "lower"
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return is_causal(operand, definitions, keeps=not keeps)
        case ast.Call(func=ast.Attribute(value=value, attr="logical_not"), args=[]):
            return is_causal(value, definitions, keeps=not keeps)
    return _triangle(mask, definitions) == ("lower" if keeps else "above")


def _triangle(node: ast.expr, definitions: Definitions) -> str:
    """``lower`` for ones on and below the diagonal, ``above`` for ones above it."""
    node = definitions.resolved(node)
    match node:
        case ast.Subscript(value=value):
            return _triangle(value, definitions)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=1)]):
            return _triangle(left, definitions)
        case ast.Call(
            func=ast.Attribute(value=value, attr=attribute), args=args, keywords=keywords
        ):
            if attribute in ("tril", "triu"):
                is_function = ast.unparse(value) == "torch"
                diagonals = [ast.unparse(part.value) for part in keywords if part.arg == "diagonal"]
                diagonals += [ast.unparse(part) for part in args[is_function:]]
                inner = args[0] if is_function and args else value
                if not re.search(r"\bones\b|ones_like", ast.unparse(definitions.resolved(inner))):
                    return ""
                if attribute == "tril" and diagonals in ([], ["0"]):
                    return "lower"
                return "above" if attribute == "triu" and diagonals == ["1"] else ""
            if attribute in _UNCHANGED:
                return _triangle(value, definitions)
    return ""


def is_lowest(node: ast.expr) -> bool:
    """True for minus infinity, or a number that leaves no weight."""
    text = ast.unparse(node).replace('"', "'")
    if re.search(r"-\s*(torch|math|np|numpy)\.inf|float\('-inf'\)|-float\('inf'\)", text):
        return True
    if re.fullmatch(r"torch\.finfo\(.*\)\.min", text):
        return True
    text = re.sub(r"float\('(.*)'\)", r"\1", text)
    try:
        return float(ast.literal_eval(text)) <= _LOWEST
    except (ValueError, TypeError, SyntaxError):
        return False


def is_causal_bias(node: ast.expr) -> bool:
    """True for minus infinity above the diagonal, and zeros elsewhere."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="triu"), args=args, keywords=keywords):
            is_function = ast.unparse(value) == "torch"
            diagonals = [ast.unparse(part.value) for part in keywords if part.arg == "diagonal"]
            diagonals += [ast.unparse(part) for part in args[is_function:]]
            inner = args[0] if is_function and args else value
            match inner:
                case ast.Call(func=ast.Attribute(attr="full"), args=[_, fill, *_]):
                    return diagonals == ["1"] and is_lowest(fill)
    return False
