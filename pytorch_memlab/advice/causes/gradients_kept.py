"""Gradients of the step before are still there in the forward pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, Final

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied, does_not_apply
from ..cause import Cause, NamedChange, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_in_optimizer
from ..lines_to_edit import RunningLine, functions_around, user_lines, with_keywords
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    name_of_call,
    nodes_of,
    rewritings,
    statement_at,
)

_NAME = "zero_grad"
_OF_SEVERAL_STEPS: Final = re.compile(r"accum|sync_gradients", re.IGNORECASE)


class SetToNone(AroundProgram):
    """``zero_grad`` frees the gradients where the program asks it to keep them."""

    name = "set_to_none"
    what_it_changes = "p.grad is None after zero_grad, not a tensor of zeros"

    def patch(self, patches: Patches) -> None:
        import torch

        self._is_called = self._is_changed = False
        self._lines: dict[RunningLine, None] = {}
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            patches.around(owner, _NAME)(self._zero_grad)

    def finding(self) -> Finding:
        if self._is_changed:
            edits = [with_keywords(line, _NAME, {"set_to_none": "True"}) for line in self._lines]
            return applied(["optimizer.zero_grad(set_to_none=True)"], edits)
        if self._is_called:
            return already_used("zero_grad sets gradients to None")
        return does_not_apply("zero_grad is never called")

    def _zero_grad(
        self, original: Callable[..., None], owner: Any, set_to_none: bool = True
    ) -> None:
        self._is_called = True
        if not set_to_none:
            self._is_changed = True
            self._lines |= dict.fromkeys(user_lines()[:1])
        original(owner, True)


class GradientsKept(Cause):
    """A forward pass runs while the gradients of the last step are in use."""

    name = "gradients of the step before"
    order = 130
    results = Results.SAME
    tried_by_name = (NamedChange("set_to_none", SetToNone),)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        gradients = oom.of_category(Category.GRADIENTS)
        if oom.node or is_in_optimizer(oom) or not gradients or gradients < oom.shortage:
            return None
        change = _set_to_none(oom)
        if change is None:
            trees = [file.tree for file in rewritings(oom)]
            owners = set[str]().union(*map(_owners_of_gradients, trees))
            # Several models take turns, and the gradients may be those of this step.
            if len(owners) > 1 or any(map(_accumulates, trees)):
                return None
            change = _cleared_before(oom)
        return self.found(
            gradients,
            f"gradients of the step before take {prose_size(gradients)}",
            *(
                changed_code(change)
                or ["optimizer.zero_grad(set_to_none=True)  # before the forward pass"]
            ),
            change=change,
        )


def _set_to_none(oom: OutOfMemory) -> EditedSource | None:
    """The program with ``set_to_none=True`` where it has ``False``."""
    files = list(rewritings(oom))
    for file in files:
        for call in nodes_of(file.tree, ast.Call):
            for keyword in call.keywords:
                value = keyword.value
                is_false = isinstance(value, ast.Constant) and value.value is False
                if name_of_call(call) == _NAME and keyword.arg == "set_to_none" and is_false:
                    file.replace(value, "True")
    changed = [file for file in files if file.is_changed]
    return changed_source(*changed) if changed else None


def _cleared_before(oom: OutOfMemory) -> EditedSource | None:
    """``zero_grad()`` before the outermost running statement that can read its owner."""
    for frame in reversed(oom.frames):
        file = Rewriting(frame.place.file)
        owner = _owner_of_gradients(file.tree)
        statement = statement_at(file.tree, frame.place.line)
        if not owner or statement is None or not _is_set(file.tree, owner, statement.lineno):
            continue
        file.insert_lines(
            statement.lineno, statement.col_offset, [f"{owner}.{_NAME}(set_to_none=True)"]
        )
        return changed_source(file)
    return None


def _is_set(tree: ast.AST, owner: str, line: int) -> bool:
    """True if a line can read the variable of an object; so too where no statement sets it."""
    name = owner.partition(".")[0]
    set_at = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
    ]
    around = _functions(tree, line)
    functions = {number: _functions(tree, number) for number in set_at}
    return not set_at or any(
        functions[number] < around or (functions[number] == around and number <= line)
        for number in set_at
    )


def _functions(tree: ast.AST, line: int) -> set[int]:
    """The first lines of the functions that a line is in."""
    return {function.lineno for function in functions_around(tree, line)}


def _owner_of_gradients(tree: ast.AST) -> str:
    """The object whose gradients the program clears; empty if it clears none."""
    owners = _owners_of_gradients(tree)
    return owners.pop() if len(owners) == 1 else ""


def _owners_of_gradients(tree: ast.AST) -> set[str]:
    calls = [call for call in nodes_of(tree, ast.Call) if name_of_call(call) == _NAME]
    return {ast.unparse(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)}


def _accumulates(tree: ast.AST) -> bool:
    """True if gradients are cleared after several steps only, which add to them."""
    return any(
        name_of_call(call) == _NAME
        for condition in nodes_of(tree, ast.If)
        if any(isinstance(operator, ast.Mod) for operator in ast.walk(condition.test))
        or _OF_SEVERAL_STEPS.search(ast.unparse(condition.test))
        for statement in condition.body
        for call in nodes_of(statement, ast.Call)
    )
