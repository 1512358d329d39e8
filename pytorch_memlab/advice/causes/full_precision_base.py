"""Frozen parameters, beside adapters that are trained, are in float32."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..forward_in_half import under_autocast
from ..rewriting import (
    changed_code,
    changed_source,
    last_name,
    loaded_names,
    name_of_call,
    nodes_of,
    rewritings,
    statement_around,
)


class FullPrecisionBase(Cause):
    """LoRA, or a frozen backbone: its parameters need no float32, since nothing updates them."""

    name = "frozen parameters in float32"
    order = 115
    results = Results.BFLOAT16

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        frozen = oom.model.frozen
        if not is_much(frozen // 2, oom) or frozen == oom.model.float32:
            return None
        change = _base_in_half(oom) or _frozen_in_half(oom)
        line = change.edits[0].first if change is not None else 0
        return self.found(
            frozen // 2,
            f"parameters that are not trained take {prose_size(frozen)} in float32{at_line(line)}",
            *(changed_code(change) or ["base_model = base_model.to(torch.bfloat16)"]),
            basis=Basis.ESTIMATED,
            effect="the base computes in bfloat16",
            change=change,
        )


def _base_in_half(oom: OutOfMemory) -> EditedSource | None:
    """The base model in bfloat16 before a library adds adapters to it."""
    for file in rewritings(oom):
        for call in nodes_of(file.tree, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            base = keywords.get("model", call.args[0] if call.args else None)
            is_adapted = name_of_call(call) == "get_peft_model" or "peft_config" in keywords
            statement = statement_around(file.tree, call)
            if not is_adapted or not isinstance(base, ast.Name) or statement is None:
                continue
            file.insert_lines(
                statement.lineno,
                statement.col_offset,
                [f"{base.id} = {base.id}.to(torch.bfloat16)"],
            )
            file.ensure_import("torch")
            return changed_source(file)
    return None


def _frozen_in_half(oom: OutOfMemory) -> EditedSource | None:
    """Frozen parameters in bfloat16 from the start, and the forward pass under autocast."""
    change = under_autocast(oom)
    if change is None:
        return None
    for file in rewritings(oom):
        for node in nodes_of(file.tree, ast.Assign):
            name = ast.unparse(node.targets[0])
            is_made = isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name)
            if not is_made or last_name(node.targets[0]) != oom.model.name:
                continue
            last = _last_freezing(file.tree, node, name)
            file.insert_lines(
                (last.end_lineno or 0) + 1,
                node.col_offset,
                [
                    f"for parameter in {name}.parameters():",
                    "    if not parameter.requires_grad:",
                    "        parameter.data = parameter.data.to(torch.bfloat16)",
                ],
            )
            file.ensure_import("torch")
            frozen = changed_source(file)
            return None if frozen is None else EditedSource([*frozen.edits, *change.edits])
    return None


def _last_freezing(tree: ast.Module, made: ast.stmt, name: str) -> ast.stmt:
    """The last statement beside that of a model which freezes parameters of it, or that one."""
    for around in ast.walk(tree):
        body = getattr(around, "body", None)
        if isinstance(body, list) and made in body:
            after: list[ast.stmt] = body[body.index(made) + 1 :]
            for statement in reversed(after):
                is_freezing = any(
                    attribute.attr == "requires_grad_"
                    or (attribute.attr == "requires_grad" and isinstance(attribute.ctx, ast.Store))
                    for attribute in nodes_of(statement, ast.Attribute)
                )
                if is_freezing and name in loaded_names(statement):
                    return statement
    return made
