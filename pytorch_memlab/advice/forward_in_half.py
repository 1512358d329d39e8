"""The forward pass of a training step under autocast, in the program's own lines."""

from __future__ import annotations

import ast
from typing import Final

from ..history.out_of_memory import OutOfMemory
from .changes import EditedSource
from .lines_to_edit import blocks
from .rewriting import (
    Rewriting,
    all_rewritings,
    changed_source,
    loaded_names,
    name_of_call,
    nodes_of,
    rewritings,
    set_keywords,
    stored_names,
)

_OPTIONS: Final = (
    ("TrainingArguments", "bf16", "True"),
    ("SFTConfig", "bf16", "True"),
    ("Accelerator", "mixed_precision", '"bf16"'),
    ("Trainer", "precision", '"bf16-mixed"'),
)
"""Ends of names of calls, with the options that run a forward pass in bfloat16."""
_BACKWARD: Final = "backward"


def uses_half(oom: OutOfMemory) -> bool:
    """True if a part of the tensors has 16 bits for each number."""
    half = sum(block.size for block in oom.blocks if block.dtype in ("float16", "bfloat16"))
    return half * 8 > oom.in_use


def refuses_autocast(oom: OutOfMemory) -> bool:
    """True if the program has a loss that raises an error under autocast."""
    # ``binary_cross_entropy_banned`` in ``aten/src/ATen/autocast_mode.cpp`` raises it.
    return any(
        name_of_call(call) in ("BCELoss", "binary_cross_entropy")
        for file in all_rewritings(oom)
        for call in nodes_of(file.tree, ast.Call)
    )


def with_option(oom: OutOfMemory) -> EditedSource | None:
    """The option of a library that runs the training loop; None if there is none."""
    for file in all_rewritings(oom):
        if _with_option(file):
            return changed_source(file)
    return None


def under_autocast(oom: OutOfMemory) -> EditedSource | None:
    """The program with its forward pass in 16 bits; None if there is no one place for that."""
    for file in [] if refuses_autocast(oom) else rewritings(oom):
        if _with_option(file) or _around_forward(file):
            return changed_source(file)
    return None


def _with_option(file: Rewriting) -> bool:
    is_lightning = any(
        "lightning" in ast.unparse(node)
        for node in file.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    for call in nodes_of(file.tree, ast.Call):
        name = name_of_call(call)
        for end, keyword, value in _OPTIONS:
            if name.endswith(end) and (keyword != "precision" or is_lightning):
                set_keywords(file, call, **{keyword: value})
                return True
    return False


def _around_forward(file: Rewriting) -> bool:
    """Put the statements that a backward pass depends on under autocast."""
    for block in blocks(file.tree):
        for index, statement in enumerate(block):
            loss = _loss_of(statement)
            if loss is not None:
                _wrap(file, block[:index], statement, loss)
                return file.is_changed
    return False


def _loss_of(statement: ast.stmt) -> ast.expr | None:
    """The value whose backward pass a statement runs."""
    if not isinstance(statement, ast.Expr):
        return None
    for call in nodes_of(statement, ast.Call):
        if name_of_call(call) == _BACKWARD and isinstance(call.func, ast.Attribute):
            return call.args[0] if call.args else call.func.value
    return None


def _wrap(file: Rewriting, before: list[ast.stmt], backward: ast.stmt, loss: ast.expr) -> None:
    dtype = "float16" if "GradScaler" in ast.unparse(file.tree) else "bfloat16"
    opening = f'with torch.autocast("cuda", dtype=torch.{dtype}):'
    column = backward.col_offset
    inner = loss
    while isinstance(inner, ast.Call) and name_of_call(inner) in ("scale", "div", "mul"):
        inner = inner.args[0] if inner.args else inner
    if any(isinstance(node, ast.Call) for node in ast.walk(inner)):  # the forward pass itself
        file.insert_lines(backward.lineno, column, [opening, f"    loss = {ast.unparse(inner)}"])
        file.replace(inner, "loss")
        file.ensure_import("torch")
        return
    needed, first, last = loaded_names(inner), None, None
    for statement in reversed(before):
        if not stored_names(statement) & needed or not _computes(statement):
            continue
        needed |= loaded_names(statement)
        last = last or statement
        first = statement
    if first is None or last is None:
        return
    file.insert_lines(first.lineno, column, [opening])
    file.indent(first, last)
    file.ensure_import("torch")


def _computes(statement: ast.stmt) -> bool:
    """False for what only makes or moves tensors."""
    for call in nodes_of(statement, ast.Call):
        text = ast.unparse(call.func)
        is_factory = text.startswith("torch.") and "nn" not in text
        if not is_factory and name_of_call(call) not in ("cuda", "to", "next", "load", "iter"):
            return True
    return any(isinstance(node, (ast.BinOp, ast.With)) for node in ast.walk(statement))
