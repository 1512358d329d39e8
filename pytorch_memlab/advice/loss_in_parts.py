"""A loss over a large vocabulary in parts, each computed again in the backward pass.

Note [Parts of a loss]
Logits are as many as tokens times words, and a loss keeps them several times. A part of the tokens
at a time needs a part of them, if the backward pass computes them again. Where one function has
both the last layer and the loss, parts of the hidden state go through both. Where a function calls
the whole model, parts of the batch do.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from .changes import EditedSource
from .rewriting import (
    Rewriting,
    changed_source,
    last_name,
    loaded_names,
    name_of_call,
    nodes_of,
    stored_names,
)

_SHAPES: Final = (
    "view",
    "reshape",
    "flatten",
    "transpose",
    "permute",
    "float",
    "contiguous",
    "to",
    "mT",
)
_FUNCTIONS: Final = {"CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss"}
"""The functions that compute what modules of these names do."""
_LOSSES: Final = (*_FUNCTIONS, *_FUNCTIONS.values())
_OPTIONS: Final = frozenset({"ignore_index", "label_smoothing"})
"""Arguments with which the mean stays a sum, divided by the number of targets."""
_IGNORED: Final = "-100"  # the default of ignore_index
_PART: Final = "part_of_loss"


@dataclass(frozen=True, slots=True)
class _Loss:
    """A statement with a loss, and the statement that makes its logits."""

    statement: ast.stmt
    call: ast.Call
    logits: ast.Assign
    model: ast.Call  # whose result the logits are


@dataclass(frozen=True, slots=True)
class LossInParts:
    """The edit, and whether the loss stays the mean over all targets."""

    change: EditedSource
    is_mean_of_targets: bool


def loss_in_parts(file: Rewriting, parts: int) -> LossInParts | None:
    """The loss of a file in parts; None if it has no loss with logits of the same function."""
    for function in [*nodes_of(file.tree, ast.FunctionDef), file.tree]:
        loss = _loss_in(file.tree, function)
        if loss is not None:
            summed = _summed(file.tree, loss.call)
            _rewrite(file, function, loss, summed, parts)
            change = changed_source(file)
            return None if change is None else LossInParts(change, summed is not None)
    return None


def _loss_in(tree: ast.Module, function: ast.AST) -> _Loss | None:
    statements = sorted(_statements(function), key=lambda statement: statement.lineno)
    for statement in statements:
        if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
            continue
        for call in nodes_of(statement.value, ast.Call):
            if len(call.args) < 2 or not _is_loss(tree, call):
                continue
            name = _root(call.args[0])
            for before in reversed(statements):
                if (
                    isinstance(before, ast.Assign)
                    and before.lineno < call.lineno
                    and ast.unparse(before.targets[0]) == name
                    and isinstance(before.value, ast.Call)
                    and before.value.args
                ):
                    return _Loss(statement, call, before, before.value)
    return None


@dataclass(frozen=True, slots=True)
class _Sum:
    """A loss as the sum over targets, and the number that its mean is divided by."""

    call: str
    count: str


def _summed(tree: ast.Module, call: ast.Call) -> _Sum | None:
    """None for a loss whose arguments are not known, or whose classes have weights."""
    made = [call] if name_of_call(call) in _FUNCTIONS.values() else _modules(tree, call)
    if len(made) != 1 or len(call.args) != 2 or (made[0] is not call and made[0].args):
        return None
    keywords = {
        keyword.arg: ast.unparse(keyword.value) for keyword in (*call.keywords, *made[0].keywords)
    }
    if not _OPTIONS.issuperset(keywords):
        return None
    function = ast.unparse(call.func)
    if made[0] is not call:
        function = f"torch.nn.functional.{_FUNCTIONS[name_of_call(made[0])]}"
    logits, targets = map(ast.unparse, call.args)
    options = "".join(f"{name}={value}, " for name, value in keywords.items())
    return _Sum(
        f'{function}({logits}, {targets}, {options}reduction="sum")',
        f"({targets} != {keywords.get('ignore_index', _IGNORED)}).sum()",
    )


def _modules(tree: ast.Module, call: ast.Call) -> list[ast.Call]:
    """The calls that make the module of a loss: ``criterion = nn.CrossEntropyLoss()``."""
    name = name_of_call(call)
    return [
        node.value
        for node in nodes_of(tree, ast.Assign)
        if last_name(node.targets[0]) == name
        and isinstance(node.value, ast.Call)
        and name_of_call(node.value) in _FUNCTIONS
    ]


def _is_loss(tree: ast.Module, call: ast.Call) -> bool:
    name = name_of_call(call)
    if name in _LOSSES or _modules(tree, call):
        return True
    # One that a caller gives to the function.
    return any(name_of_call(call) in _LOSSES for call in nodes_of(tree, ast.Call)) and (
        "criterion" in name or "loss" in name
    )


def _root(node: ast.expr) -> str:
    """The variable that an expression only gives another shape."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _SHAPES:
                node = value
            case ast.Subscript(value=value):
                node = value
            case _:
                return ast.unparse(node)


def _rewrite(
    file: Rewriting, function: ast.AST, loss: _Loss, summed: _Sum | None, parts: int
) -> None:
    logits = ast.unparse(loss.logits.targets[0])
    inputs = loss.model.args[0]
    target = loss.call.args[1]
    names = [_first_name(inputs), _first_name(target)]
    names = list(dict.fromkeys(name for name in names if name))
    column = loss.statement.col_offset
    between = [
        statement
        for statement in _statements(function)
        if loss.logits.lineno < statement.lineno < loss.statement.lineno
        and logits in loaded_names(statement) & stored_names(statement)
    ]
    body = [loss.logits, *between]
    lines = [f"def {_PART}({', '.join(names)}):"]
    lines += [f"    {text}" for statement in body for text in ast.unparse(statement).splitlines()]
    lines.append(f"    return {ast.unparse(loss.call) if summed is None else summed.call}")
    chunks = ", ".join(f"{name}.chunk({parts})" for name in names)
    file.insert_lines(loss.statement.lineno, column, lines)
    checkpoint = "torch.utils.checkpoint.checkpoint"
    argument = "part" if len(names) == 1 else "*part"
    over = chunks if len(names) == 1 else f"zip({chunks})"
    parts_of = f"[{checkpoint}({_PART}, {argument}, use_reentrant=False) for part in {over}]"
    whole = "mean()" if summed is None else f"sum() / {summed.count}"
    file.replace(loss.call, f"torch.stack({parts_of}).{whole}")
    used_elsewhere = [
        statement
        for statement in _statements(function)
        if logits in loaded_names(statement) and statement not in (loss.statement, *between)
    ]
    if not used_elsewhere:
        for statement in body:
            file.delete(statement)
    file.ensure_import("torch.utils.checkpoint")
    file.ensure_import("torch")


def _first_name(node: ast.expr) -> str:
    """The local variable that an expression is a part or another shape of."""
    names = [name.id for name in nodes_of(node, ast.Name) if name.id not in ("self", "torch")]
    return names[0] if names else ""


def _statements(function: ast.AST) -> list[ast.stmt]:
    """Statements without a body."""
    return [
        statement for statement in nodes_of(function, ast.stmt) if not hasattr(statement, "body")
    ]
