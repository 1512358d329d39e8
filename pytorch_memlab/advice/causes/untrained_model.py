"""A model that no optimizer trains saves its activations, such as the teacher of another one."""

from __future__ import annotations

import ast
from collections import Counter

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory, ProgramLine
from ..cause import Cause, Remedy, Results
from ..changes import without_gradients
from ..evidence import is_much
from ..rewriting import (
    Rewriting,
    changed_code,
    last_name,
    loaded_names,
    nodes_of,
    statement_at,
    stored_names,
)


class UntrainedModel(Cause):
    """Parameters that no optimizer has require gradients, so autograd saves what they need."""

    name = "activations of a model that is not trained"
    order = 42
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        sizes = Counter[ProgramLine]()
        for block in oom.blocks:
            if block.category is Category.SAVED and block.place is not None and not block.name:
                sizes[block.place] += block.size
        for place, size in sizes.most_common(3):
            name = _untrained(place) if is_much(size, oom) else ""
            if not name:
                continue
            change = without_gradients(place.file, place.line, is_function=False)
            return self.found(
                size,
                f"{name} (line {place.line}) is not trained, and autograd saved"
                f" {prose_size(size)} in it",
                *(changed_code(change) or [f"torch.no_grad()  # around line {place.line}"]),
                change=change,
            )
        return None


def _untrained(place: ProgramLine) -> str:
    """The model that a line calls, if no optimizer has it and no gradient runs through it."""
    tree = Rewriting(place.file).tree
    statement = statement_at(tree, place.line)
    match statement:
        case ast.Assign(value=ast.Call(func=function) as call):
            name = last_name(function)
        case _:
            return ""
    trained, evaluated = _owners(tree, "parameters"), _owners(tree, "eval")
    if name in trained or name not in evaluated or not trained:
        return ""
    needed = {name for argument in call.args for name in loaded_names(argument)}
    needed |= {name for argument in call.keywords for name in loaded_names(argument.value)}
    for other in nodes_of(tree, ast.Assign):  # what a trained model made has gradients
        called = {last_name(call_node.func) for call_node in nodes_of(other.value, ast.Call)}
        if called & trained and stored_names(other) & needed:
            return ""
    return name


def _owners(tree: ast.Module, method: str) -> set[str]:
    """The objects of which a method is called."""
    return {
        last_name(call.func.value)
        for call in nodes_of(tree, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == method
    }
