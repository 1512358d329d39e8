"""Parameters that no optimizer updates get gradients, such as those of a model for a loss."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory, UntrainedModelFacts
from ..cause import Basis, Cause, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_kept, is_much
from ..rewriting import changed_code, changed_source, name_of_call, nodes_of, rewritings


class UntrainedParameters(Cause):
    """Parameters require gradients that no optimizer takes, so autograd saves what they need."""

    name = "gradients of parameters that are not trained"
    order = 43
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        # What a failed call had saved is gone with its error, and counts as temporaries.
        saved = oom.of_category(Category.SAVED) + oom.of_category(Category.TEMPORARIES)
        if not is_much(saved, oom) or is_kept(oom, oom.of_category(Category.SAVED)):
            return None
        for model in oom.model.untrained:
            change = _partly_frozen(oom, model) if model.is_partly_trained else _frozen(oom, model)
            if change is None:
                continue
            verb = "get" if model.gradients else "require"
            return self.found(
                max(model.gradients, oom.shortage),
                f"no optimizer has {prose_size(model.parameters)} of the parameters of"
                f" {model.name}, and they {verb} gradients",
                *changed_code(change),
                basis=Basis.ESTIMATED,
                change=change,
            )
        return None


def _frozen(oom: OutOfMemory, model: UntrainedModelFacts) -> EditedSource | None:
    """The program in which a model requires no gradients from when it is made."""
    for file in rewritings(oom):
        made = [node for node in nodes_of(file.tree, ast.Assign) if _sets(node, model.name)]
        if not made:
            continue
        last = max(made, key=lambda node: node.lineno)
        file.insert_lines(
            (last.end_lineno or 0) + 1, last.col_offset, [f"{model.name}.requires_grad_(False)"]
        )
        return changed_source(file)
    return None


def _sets(node: ast.Assign, name: str) -> bool:
    targets = [
        part
        for target in node.targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return any(ast.unparse(target) == name for target in targets)


def _partly_frozen(oom: OutOfMemory, model: UntrainedModelFacts) -> EditedSource | None:
    """The program in which only those parameters require gradients that its optimizer has."""
    names = {optimizer.name for optimizer in oom.optimizers}
    for file in rewritings(oom):
        made = [
            node for node in nodes_of(file.tree, ast.Assign) if name_of_call(node.value) in names
        ]
        if not made:
            continue
        if len(made) > 1:
            return None
        [node] = made
        optimizer = ast.unparse(node.targets[0])
        file.insert_lines(
            (node.end_lineno or 0) + 1,
            node.col_offset,
            [
                "trained = {",
                "    id(parameter)",
                f"    for group in {optimizer}.param_groups",
                '    for parameter in group["params"]',
                "}",
                f"for parameter in {model.name}.parameters():",
                "    parameter.requires_grad_(id(parameter) in trained)",
            ],
        )
        return changed_source(file)
    return None
