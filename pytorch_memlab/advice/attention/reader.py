"""Follows the statements of a function, and what they do to scores."""

from __future__ import annotations

import ast
from dataclasses import replace

from ..rewriting import name_of_call
from .definitions import Definitions
from .masks import OF_SAME_VALUES, is_causal, is_causal_bias, is_lowest, kept
from .products import operands_of_product, untransposed
from .scores import AttentionOutput, AttentionScores, FollowedStatements


class AttentionReader:
    """Reads attention in a function."""

    def __init__(self, tree: ast.Module, function: ast.FunctionDef, *, has_heads: bool) -> None:
        self._parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        self._has_heads = has_heads
        self.reading = FollowedStatements()
        self._definitions = Definitions(tree, self.reading.assigned)

    def names_of_scores(self) -> set[str]:
        return set(self.reading.scores)

    def read(self, node: ast.stmt, condition: str) -> AttentionOutput | None:
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

    def _assign(
        self, node: ast.stmt, name: str, scores: AttentionScores | None, condition: str
    ) -> None:
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

    def _output_in(self, value: ast.expr) -> AttentionOutput | None:
        for node in ast.walk(value):
            operands = operands_of_product(node)
            if operands is not None:
                weights = self._scores_of(operands[0])
                if weights is not None and weights.is_normalised:
                    assert isinstance(node, ast.expr)
                    return AttentionOutput(weights, ast.unparse(operands[1]), node, operands[2])
        return None

    def _scores_of(self, node: ast.expr) -> AttentionScores | None:
        if isinstance(node, ast.Name):
            return self.reading.scores.get(node.id)
        operands = operands_of_product(node)
        if operands is not None:
            left = self._scores_of(operands[0])
            key = untransposed(operands[1], has_heads=self._has_heads)
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

    def _of_product(self, query: ast.expr, key: ast.expr) -> AttentionScores:
        """Scores; a factor of the query or the key is their scale."""
        scores = AttentionScores("", "")
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

    def _combined(
        self, scores: AttentionScores, operator: ast.operator, other: ast.expr
    ) -> AttentionScores | None:
        if scores.is_normalised:
            return None
        if isinstance(operator, (ast.Mult, ast.Div)):
            if scores.biases:
                return None  # a bias would be scaled too
            return replace(scores, scale=_scaled(scores.scale, operator, other))
        if isinstance(operator, ast.Add):
            whole = other.value if isinstance(other, ast.Subscript) else other
            if is_causal_bias(self._definitions.resolved(whole)):
                return replace(scores, is_causal=True)
            return replace(scores, biases=(*scores.biases, ast.unparse(other)))
        if isinstance(operator, ast.Sub):
            return replace(scores, biases=(*scores.biases, f"-({ast.unparse(other)})"))
        return None

    def _called(self, node: ast.Call) -> AttentionScores | None:
        name = self._name_of(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_method = owner is not None and self._scores_of(owner) is not None
        arguments = [owner, *node.args] if is_method and owner is not None else list(node.args)
        if not arguments:
            return None
        if name.rstrip("_") == "where" and len(arguments) == 3:
            scores, other = self._scores_of(arguments[1]), arguments[2]
            is_masked = scores is not None and is_lowest(other)
            return self._masked(scores, arguments[0], keeps=True) if is_masked else None
        scores = self._scores_of(arguments[0])
        if scores is None:
            return None
        name = name.rstrip("_")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "masked_fill" and len(arguments) == 3 and is_lowest(arguments[2]):
            return self._masked(scores, arguments[1], keeps=False)
        if name == "softmax" and not scores.is_normalised:
            dim = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
            last = ("-1", "3" if self._has_heads else "2")
            is_last = dim is not None and ast.unparse(dim) in last
            is_module = dim is None and not isinstance(node.func, ast.Name) and not is_method
            return replace(scores, is_normalised=True) if is_last or is_module else None
        if "drop" in name and scores.is_normalised:
            return replace(scores, dropout=_dropout(node, arguments, keywords, self._parameters))
        if name in OF_SAME_VALUES and is_method:
            return scores
        if name in ("div", "mul") and is_method and len(arguments) == 2:
            operator = ast.Div() if name == "div" else ast.Mult()
            return self._combined(scores, operator, arguments[1])
        if name == "add" and is_method and len(arguments) == 2:
            return self._combined(scores, ast.Add(), arguments[1])
        return None

    def _name_of(self, call: ast.Call) -> str:
        """The name of a called function; ``softmax`` for a module that is one."""
        module = self._definitions.resolved(call.func)
        if isinstance(module, ast.Call) and ast.unparse(module.func).endswith("Softmax"):
            return "softmax"
        return name_of_call(call)

    def _masked(
        self, scores: AttentionScores | None, mask: ast.expr, *, keeps: bool
    ) -> AttentionScores | None:
        if scores is None or scores.is_normalised:
            return None
        allowed = kept(mask, keeps=keeps)
        if is_causal(mask, self._definitions, keeps=keeps):
            return replace(scores, is_causal=True, causal=allowed)
        return replace(scores, masks=(*scores.masks, allowed))


def _scaled(scale: str, operator: ast.operator, other: ast.expr) -> str:
    text = ast.unparse(other)
    if not isinstance(other, (ast.Name, ast.Attribute, ast.Constant, ast.Call)):
        text = f"({text})"
    if isinstance(operator, ast.Div):
        return f"{scale.removesuffix('.0') if scale == '1.0' else scale} / {text}"
    return ast.unparse(other) if scale == "1.0" else f"{scale} * {text}"


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
