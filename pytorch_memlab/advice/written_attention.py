"""Attention that a program writes out, as a call of ``scaled_dot_product_attention``.

Note [Reading attention]
The statements of a function are followed in order. A product with a transposed operand makes
scores. What scales, masks, normalises or drops them is kept. A product with the weights ends it.
The call has the same mask, scale and dropout. A function in which anything else happens to the
scores, or in which the weights are used a second time, is left alone.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from .around_program import Edit
from .rewriting import code_of, name_of_call

_FUSED: Final = "scaled_dot_product_attention"
_PRODUCTS: Final = ("matmul", "bmm")
_MASKS: Final = ("tril", "triu", "ones", "bool")
"""Functions that make a mask without any other effect."""
_OF_SAME_VALUES: Final = ("to", "float", "half", "bfloat16", "type_as", "contiguous", "clone")
_LOWEST: Final = -1000.0
"""A score below this has no weight after a softmax in any floating-point format."""


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The call, and the lines that it replaces."""

    edit: Edit

    @property
    def code(self) -> tuple[str, ...]:
        """The edit as a person makes it."""
        return code_of([self.edit])


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of a query and a key, and what was done to them."""

    query: str
    key: str
    scale: str = "1.0"
    is_causal: bool = False
    causal: str = ""  # that mask; empty if it is a bias
    masks: tuple[str, ...] = ()  # True where attention is allowed
    biases: tuple[str, ...] = ()
    dropout: str = ""
    is_normalised: bool = False
    condition: str = ""  # under which there is a mask at all


@dataclass(slots=True)
class _Reading:
    """The state while the statements of a function are followed."""

    scores: dict[str, _Scores] = field(default_factory=dict)
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    statements: list[ast.stmt] = field(default_factory=list)  # those that make or change scores


def fused_attention(file: str, line: int, *, has_heads: bool) -> FusedAttention | None:
    """The call that replaces the attention of the function around a line.

    Args:
        file: the source.
        line: number of the line with the softmax.
        has_heads: True if the scores have four dimensions; with three, a dimension is added, since
            no fused kernel takes three.
    """
    lines = [text.rstrip("\r\n") for text in linecache.getlines(file)]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None
    function = _function_at(tree, line)
    if function is None:
        return None
    reader = _Reader(tree, function, has_heads=has_heads)
    for statement, condition in _statements(function.body):
        output = reader.read(statement, condition)
        if output is not None:
            used_again = _names_after(function, statement) & reader.names_of_scores()
            used_again |= _names_beside(statement, output.node) & reader.names_of_scores()
            returned = None
            if used_again:
                returned = _returned_for_nothing(tree, function, statement, used_again)
            if (used_again and returned is None) or not _spans(reader.reading.statements, line):
                return None
            written = _written(file, lines, tree, statement, output, reader.reading, has_heads)
            if written is None or returned is None:
                return written
            return _without_weights(written, lines, statement, returned)
    return None


@dataclass(frozen=True, slots=True)
class _ReturnedWeights:
    """The statement of a function that returns weights beside the output."""

    node: ast.Return
    names: tuple[ast.Name, ...]


def _returned_for_nothing(
    tree: ast.Module, function: ast.FunctionDef, statement: ast.stmt, names: set[str]
) -> _ReturnedWeights | None:
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
    return _ReturnedWeights(node, tuple(weights))


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
            and _last_name(node.value.func) in {definition.name for definition in classes}
            for target in node.targets
        }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _last_name(node.func) in names - {""}
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
    function = _function_at(tree, target.lineno) if is_variable else None
    return any(
        isinstance(node, ast.Name if is_variable else ast.Attribute)
        and isinstance(getattr(node, "ctx", None), ast.Load)
        and _last_name(node) == _last_name(target)
        for node in ast.walk(function or tree)
        if isinstance(node, ast.expr)
    )


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _without_weights(
    written: FusedAttention, lines: list[str], statement: ast.stmt, returned: _ReturnedWeights
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


@dataclass(frozen=True, slots=True)
class _Output:
    scores: _Scores
    value: str
    node: ast.expr
    after: str = ""  # what gives the result the layout of the program


class _Reader:
    def __init__(self, tree: ast.Module, function: ast.FunctionDef, *, has_heads: bool) -> None:
        self._tree = tree
        self._parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        self._has_heads = has_heads
        self.reading = _Reading()

    def names_of_scores(self) -> set[str]:
        return set(self.reading.scores)

    def read(self, node: ast.stmt, condition: str) -> _Output | None:
        """Follow one statement; the output of attention if the statement computes it."""
        reading = self.reading
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=other):
                before = reading.scores.get(name)
                if before is not None:
                    changed = self._combined(before, operator, other)
                    self._assign(node, name, changed, condition)
                return None
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))
            ) if name in reading.scores and method.endswith("_"):
                assert isinstance(node.value, ast.Call)
                self._assign(node, name, self._scores_of(node.value), condition)
                return None
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)) or node.value is None:
            return None
        value = node.value
        output = self._output_in(value)
        if output is not None:
            return output
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            scores = self._scores_of(value)
            if scores is not None:
                self._assign(node, name, scores, condition)
            else:
                reading.scores.pop(name, None)
                reading.assigned[name] = value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for target in node.targets[0].elts:
                if isinstance(target, ast.Name):
                    reading.assigned[target.id] = value
        return None

    def _assign(self, node: ast.stmt, name: str, scores: _Scores | None, condition: str) -> None:
        before = self.reading.scores.pop(name, None)
        if scores is None:
            return
        if condition and before is not None and scores.dropout != before.dropout:
            scores = replace(scores, dropout=f"({scores.dropout}) if {condition} else 0.0")
        if (
            condition
            and before is not None
            and (scores.masks, scores.biases)
            != (
                before.masks,
                before.biases,
            )
        ):
            scores = replace(scores, condition=condition)
        self.reading.scores[name] = scores
        self.reading.statements.append(node)

    def _output_in(self, value: ast.expr) -> _Output | None:
        for node in ast.walk(value):
            operands = _product(node)
            if operands is not None:
                weights = self._scores_of(operands[0])
                if weights is not None and weights.is_normalised:
                    assert isinstance(node, ast.expr)
                    return _Output(weights, ast.unparse(operands[1]), node, operands[2])
        return None

    def _scores_of(self, node: ast.expr) -> _Scores | None:
        if isinstance(node, ast.Name):
            return self.reading.scores.get(node.id)
        operands = _product(node)
        if operands is not None:
            left = self._scores_of(operands[0])
            key = _untransposed(operands[1], has_heads=self._has_heads)
            if left is not None or key is None or operands[2]:
                return None
            return self._of_product(operands[0], key)
        match node:
            case ast.BinOp(left=left_node, op=operator, right=right_node):
                scores = self._scores_of(left_node)
                if scores is not None:
                    return self._combined(scores, operator, right_node)
                scores = self._scores_of(right_node)
                if scores is not None and isinstance(operator, (ast.Mult, ast.Add)):
                    return self._combined(scores, operator, left_node)
            case ast.Call():
                return self._called(node)
        return None

    def _of_product(self, query: ast.expr, key: ast.expr) -> _Scores:
        """Scores; a factor of the query or the key is their scale."""
        scores = _Scores("", "")
        names = []
        for operand in (query, key):
            match operand:
                case ast.BinOp(
                    left=ast.Name(id=name), op=ast.Mult() | ast.Div() as op, right=right
                ):
                    scores = self._combined(scores, op, right) or scores
                    names.append(name)
                case _:
                    names.append(ast.unparse(operand))
        return replace(scores, query=names[0], key=names[1])

    def _combined(self, scores: _Scores, operator: ast.operator, other: ast.expr) -> _Scores | None:
        if scores.is_normalised:
            return None
        if isinstance(operator, (ast.Mult, ast.Div)):
            if scores.biases:
                return None  # a bias would be scaled too
            return replace(scores, scale=_scaled(scores.scale, operator, other))
        if isinstance(operator, ast.Add):
            whole = other.value if isinstance(other, ast.Subscript) else other
            if _is_causal_bias(self._resolved(whole)):
                return replace(scores, is_causal=True)
            return replace(scores, biases=(*scores.biases, ast.unparse(other)))
        if isinstance(operator, ast.Sub):
            return replace(scores, biases=(*scores.biases, f"-({ast.unparse(other)})"))
        return None

    def _called(self, node: ast.Call) -> _Scores | None:
        name = self._name_of(node.func)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_method = owner is not None and self._scores_of(owner) is not None
        arguments = [owner, *node.args] if is_method and owner is not None else list(node.args)
        if not arguments:
            return None
        if name.rstrip("_") == "where" and len(arguments) == 3:
            scores, other = self._scores_of(arguments[1]), arguments[2]
            is_masked = scores is not None and _is_lowest(other)
            return self._masked(scores, arguments[0], keeps=True) if is_masked else None
        scores = self._scores_of(arguments[0])
        if scores is None:
            return None
        name = name.rstrip("_")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "masked_fill" and len(arguments) == 3 and _is_lowest(arguments[2]):
            return self._masked(scores, arguments[1], keeps=False)
        if name == "softmax" and not scores.is_normalised:
            dim = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
            last = ("-1", "3" if self._has_heads else "2")
            is_last = dim is not None and ast.unparse(dim) in last
            is_module = dim is None and not isinstance(node.func, ast.Name) and not is_method
            return replace(scores, is_normalised=True) if is_last or is_module else None
        if "drop" in name and scores.is_normalised:
            return replace(scores, dropout=_dropout(node, arguments, keywords, self._parameters))
        if name in _OF_SAME_VALUES and is_method:
            return scores
        if name in ("div", "mul") and is_method and len(arguments) == 2:
            operator = ast.Div() if name == "div" else ast.Mult()
            return self._combined(scores, operator, arguments[1])
        if name == "add" and is_method and len(arguments) == 2:
            return self._combined(scores, ast.Add(), arguments[1])
        return None

    def _name_of(self, function: ast.expr) -> str:
        """The name of a function; ``softmax`` for a module that is one."""
        module = self._resolved(function)
        if isinstance(module, ast.Call) and ast.unparse(module.func).endswith("Softmax"):
            return "softmax"
        return str(getattr(function, "attr", getattr(function, "id", "")))

    def _masked(self, scores: _Scores | None, mask: ast.expr, *, keeps: bool) -> _Scores | None:
        if scores is None or scores.is_normalised:
            return None
        kept = self._kept(mask, keeps=keeps)
        if self._is_causal(mask, keeps=keeps):
            return replace(scores, is_causal=True, causal=kept)
        return replace(scores, masks=(*scores.masks, kept))

    def _kept(self, mask: ast.expr, *, keeps: bool) -> str:
        """The mask that is True where attention is allowed."""
        match mask:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
                base = ast.unparse(left)
                return f"({base} == 0)" if keeps else f"({base} != 0)"
            case ast.UnaryOp(op=ast.Invert(), operand=operand) if not keeps:
                return ast.unparse(operand)
            case ast.Call(func=ast.Attribute(value=value, attr="logical_not"), args=[]) if (
                not keeps
            ):
                return ast.unparse(value)
        text = ast.unparse(mask)
        is_simple = isinstance(mask, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        if keeps:
            return text
        return f"~{text}" if is_simple else f"~({text})"

    def _is_causal(self, mask: ast.expr, *, keeps: bool) -> bool:
        """True if a mask allows just what comes before."""
        match mask:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
                return not keeps and self._triangle(left) == "lower"
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self._is_causal(operand, keeps=not keeps)
            case ast.Call(func=ast.Attribute(value=value, attr="logical_not"), args=[]):
                return self._is_causal(value, keeps=not keeps)
        return self._triangle(mask) == ("lower" if keeps else "above")

    def _triangle(self, node: ast.expr) -> str:
        """``lower`` for ones on and below the diagonal, ``above`` for ones above it."""
        node = self._resolved(node)
        match node:
            case ast.Subscript(value=value):
                return self._triangle(value)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=1)]):
                return self._triangle(left)
            case ast.Call(
                func=ast.Attribute(value=value, attr=attribute), args=args, keywords=keywords
            ):
                if attribute in ("tril", "triu"):
                    is_function = ast.unparse(value) == "torch"
                    diagonals = [
                        ast.unparse(part.value) for part in keywords if part.arg == "diagonal"
                    ]
                    diagonals += [ast.unparse(part) for part in args[is_function:]]
                    inner = args[0] if is_function and args else value
                    if not re.search(r"\bones\b|ones_like", ast.unparse(self._resolved(inner))):
                        return ""
                    if attribute == "tril" and diagonals in ([], ["0"]):
                        return "lower"
                    return "above" if attribute == "triu" and diagonals == ["1"] else ""
                if attribute in (
                    *_OF_SAME_VALUES,
                    "view",
                    "bool",
                    "unsqueeze",
                    "expand",
                    "reshape",
                ):
                    return self._triangle(value)
        return ""

    def _resolved(self, node: ast.expr) -> ast.expr:
        """The value of a variable, or of an attribute of the class."""
        for _ in range(8):
            if isinstance(node, ast.Name) and node.id in self.reading.assigned:
                node = self.reading.assigned[node.id]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                value = self._attribute(node.attr)
                if value is None:
                    return node
                node = self._value_of_name(value) if isinstance(value, ast.Name) else value
            else:
                return node
        return node

    def _value_of_name(self, node: ast.Name) -> ast.expr:
        """The value of a variable of another function, if the file assigns it once."""
        values = [
            assignment.value
            for assignment in ast.walk(self._tree)
            if isinstance(assignment, ast.Assign)
            and any(
                isinstance(target, ast.Name) and target.id == node.id
                for target in assignment.targets
            )
        ]
        return values[0] if len(values) == 1 else node

    def _attribute(self, name: str) -> ast.expr | None:
        """The value of an attribute or a buffer, if the file assigns it once."""
        values: list[ast.expr] = []
        for node in ast.walk(self._tree):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=attr)], value=value) if attr == name:
                    values.append(value)
                case ast.Assign(
                    targets=[ast.Tuple(elts=attributes)], value=ast.Tuple(elts=parts)
                ) if len(attributes) == len(parts):
                    values += [
                        part
                        for attribute, part in zip(attributes, parts, strict=True)
                        if isinstance(attribute, ast.Attribute) and attribute.attr == name
                    ]
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer"),
                    args=[ast.Constant(value=buffer), value, *_],
                ) if buffer == name:
                    values.append(value)
        return values[0] if len(values) == 1 else None


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _statements(body: list[ast.stmt], condition: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Statements in order, also those under ``if``, with the condition."""
    for statement in body:
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            yield from _statements(statement.body, test)
            yield from _statements(statement.orelse, f"not ({test})")
        elif isinstance(statement, ast.With):
            yield from _statements(statement.body, condition)
        else:
            yield statement, condition


def _product(node: ast.AST) -> tuple[ast.expr, ast.expr, str] | None:
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
    return _of_call(ast.unparse(node))


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


def _untransposed(node: ast.expr, *, has_heads: bool) -> ast.expr | None:
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


def _scaled(scale: str, operator: ast.operator, other: ast.expr) -> str:
    text = ast.unparse(other)
    if not isinstance(other, (ast.Name, ast.Attribute, ast.Constant, ast.Call)):
        text = f"({text})"
    if isinstance(operator, ast.Div):
        return f"{scale.removesuffix('.0') if scale == '1.0' else scale} / {text}"
    return ast.unparse(other) if scale == "1.0" else f"{scale} * {text}"


def _is_lowest(node: ast.expr) -> bool:
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


def _is_causal_bias(node: ast.expr) -> bool:
    """True for minus infinity above the diagonal, and zeros elsewhere."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="triu"), args=args, keywords=keywords):
            is_function = ast.unparse(value) == "torch"
            diagonals = [ast.unparse(part.value) for part in keywords if part.arg == "diagonal"]
            diagonals += [ast.unparse(part) for part in args[is_function:]]
            inner = args[0] if is_function and args else value
            match inner:
                case ast.Call(func=ast.Attribute(attr="full"), args=[_, fill, *_]):
                    return diagonals == ["1"] and _is_lowest(fill)
    return False


def _dropout(
    node: ast.Call,
    arguments: list[ast.expr],
    keywords: dict[str | None, ast.expr],
    parameters: set[str],
) -> str:
    function = ast.unparse(node.func)
    is_function = function.rpartition(".")[2] == "dropout" and not function.startswith("self.")
    if not is_function or function in parameters:
        return f"{function}.p if {function}.training else 0.0"
    rate = keywords.get("p", arguments[1] if len(arguments) > 1 else None)
    training = keywords.get("training", arguments[2] if len(arguments) > 2 else None)
    text = "0.5" if rate is None else ast.unparse(rate)
    if training is None or ast.unparse(training) == "True":
        return text
    return f"{text} if {ast.unparse(training)} else 0.0"


def _names_after(function: ast.FunctionDef, last: ast.stmt) -> set[str]:
    """Variables that a function reads after a statement."""
    end = last.end_lineno or 0
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > end
    }


def _names_beside(statement: ast.stmt, node: ast.expr) -> set[str]:
    """Variables that a statement reads outside of an expression."""
    inside = {id(part) for part in ast.walk(node)}
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and id(part) not in inside
    }


def _spans(statements: list[ast.stmt], line: int) -> bool:
    """True if a line lies among the statements, or right after them."""
    return not statements or min(node.lineno for node in statements) <= line


def _written(
    file: str,
    lines: list[str],
    tree: ast.Module,
    node: ast.stmt,
    output: _Output,
    reading: _Reading,
    has_heads: bool,
) -> FusedAttention | None:
    scores = output.scores
    mask = _mask(scores)
    if mask is None:
        return None
    operands = [scores.query, scores.key, output.value]
    if not has_heads:
        operands = [f"{_of_call(text)}.unsqueeze(1)" for text in operands]
        mask = f"{_of_call(mask)}[..., None, :, :]" if mask else mask
    arguments = operands
    if mask and scores.condition:
        arguments = [*arguments, f"attn_mask={mask} if {scores.condition} else None"]
    elif mask:
        arguments = [*arguments, f"attn_mask={mask}"]
    if scores.dropout:
        arguments = [*arguments, f"dropout_p={scores.dropout}"]
    if scores.is_causal and not mask:  # a call has one of them
        arguments = [*arguments, "is_causal=True"]
    if not _is_default_scale(scores, reading):
        arguments = [*arguments, f"scale={scores.scale}"]
    after = output.after if has_heads else f".squeeze(1){output.after}"
    call = f"{_name_of_call(tree)}({', '.join(arguments)}){after}"
    changed = _with_call(lines, node, output.node, call)
    chain = [part for part in reading.statements if part is not node]
    first = min([node.lineno, *(part.lineno for part in chain)])
    dropped = {
        number for part in chain for number in range(part.lineno, (part.end_lineno or 0) + 1)
    }
    last = node.end_lineno or node.lineno
    dropped |= _lines_of_unread_masks(
        tree, range(first, node.lineno), {*dropped, *range(node.lineno, last + 1)}, changed
    )
    others = [number for number in range(first, node.lineno) if number not in dropped]
    if any(
        isinstance(part, ast.Name) and part.id in reading.scores and part.lineno in others
        for part in ast.walk(tree)
    ):
        return None  # another line reads the scores, such as their shape
    between = [lines[number - 1] for number in others]
    conditional = [part for part in ast.walk(tree) if isinstance(part, ast.If)]
    for part in conditional:  # an ``if`` whose statements are all gone goes too
        body = range(part.body[0].lineno, (part.end_lineno or 0) + 1)
        if dropped.issuperset(body) and not part.orelse and first <= part.lineno < node.lineno:
            between = [text for text in between if text != lines[part.lineno - 1]]
        elif dropped & set(body) and not dropped.issuperset(body):
            return None
    new = (*between, *changed)
    return FusedAttention(Edit(file, first, last, new))


def _lines_of_unread_masks(
    tree: ast.Module, lines: range, replaced: set[int], new: Sequence[str]
) -> set[int]:
    """Lines that make a mask which nothing reads any more, such as a triangle of ones.

    Args:
        tree: the module.
        lines: numbers of the lines to look at.
        replaced: numbers of lines that the edit replaces.
        new: the lines that come in their place.
    """
    read = set(re.findall(r"\w+", " ".join(new)))
    read |= {
        part.id
        for part in ast.walk(tree)
        if isinstance(part, ast.Name)
        and isinstance(part.ctx, ast.Load)
        and part.lineno not in replaced
    }
    return {
        number
        for part in ast.walk(tree)
        if isinstance(part, ast.Assign)
        and part.lineno in lines
        and isinstance(part.targets[0], ast.Name)
        and part.targets[0].id not in read
        and name_of_call(part.value) in _MASKS
        for number in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }


def _mask(scores: _Scores) -> str | None:
    """One mask for all; an empty text for none, and None if they cannot be joined in one."""
    parts = [*scores.masks, *scores.biases]
    if not parts:
        return ""
    if scores.masks and scores.biases:
        return None
    if scores.is_causal:
        if scores.biases or scores.condition or not scores.causal:
            return None
        parts = [scores.causal, *parts]
    joint = " & " if scores.masks else " + "
    return joint.join(parts)


def _of_call(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+(\(.*\)|\[.*\])?", text) else f"({text})"


def _is_default_scale(scores: _Scores, reading: _Reading) -> bool:
    """True for one over the square root of the query's last dimension."""
    query = re.escape(scores.query)
    size = rf"{query}\.(size\(-1\)|shape\[-1\])"
    text = scores.scale
    for name, value in reading.assigned.items():
        if re.search(rf"\b{name}\b", text) and re.fullmatch(size, ast.unparse(value)):
            text = re.sub(rf"\b{name}\b", ast.unparse(value), text)
    root = rf"((math|np|numpy)\.sqrt\({size}\)|\({size} \*\* 0\.5\))"
    power = rf"{size} \*\* -0\.5"
    return re.fullmatch(rf"1(\.0)? / {root}|{power}", text) is not None


def _name_of_call(tree: ast.Module) -> str:
    """The function, by a name that the file has imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.nn.functional" and alias.asname:
                    return f"{alias.asname}.{_FUSED}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) == ("torch.nn", "functional"):
                    return f"{alias.asname or alias.name}.{_FUSED}"
    return f"torch.nn.functional.{_FUSED}"


def _with_call(lines: list[str], statement: ast.stmt, node: ast.expr, call: str) -> list[str]:
    """The lines of a statement, with the call in place of an expression."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    text = [line.encode() for line in lines[first - 1 : last]]
    end_line, end = (node.end_lineno or 0) - first, node.end_col_offset or 0
    tail = text[end_line][end:]
    begin = node.lineno - first
    head = text[begin][: node.col_offset]
    # Brackets around the product are not needed around a call.
    if head.endswith(b"(") and tail.startswith(b")") and not re.search(rb"[\w)\]]\($", head):
        head, tail = head[:-1], tail[1:]
    text[begin : end_line + 1] = [head + call.encode() + tail]
    return [line.decode() for line in text]
