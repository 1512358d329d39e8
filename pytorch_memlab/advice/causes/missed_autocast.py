"""A program prepares for mixed precision, and its forward pass runs in float32."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..forward_in_half import under_autocast, uses_half
from ..rewriting import changed_code, changed_source, name_of_call, nodes_of, rewritings

_PREPARES = ("GradScaler", "autocast")


class MissedAutocast(Cause):
    """``GradScaler`` or ``autocast`` is there, but the forward pass is outside of it."""

    name = "float32 in a program for mixed precision"
    order = 36
    results = Results.BFLOAT16

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        size = sum(
            block.size
            for block in oom.blocks
            if block.dtype == "float32" and block.category is Category.SAVED
        )
        if not is_much(size, oom) or uses_half(oom) or not _is_prepared(oom):
            return None
        change = _on_this_device(oom) or under_autocast(oom)
        line = change.edits[0].first if change is not None else 0
        return self.found(
            size // 3,  # losses and normalisations stay in float32
            f"the forward pass{at_line(line)} saves {prose_size(size)} in float32, outside of"
            " autocast",
            *(changed_code(change) or ['with torch.autocast("cuda"):  # around the forward pass']),
            basis=Basis.ESTIMATED,
            effect="products of matrices in 16 bits",
            change=change,
        )


def _is_prepared(oom: OutOfMemory) -> bool:
    return any(
        name_of_call(call) in _PREPARES
        for file in rewritings(oom)
        for call in nodes_of(file.tree, ast.Call)
    )


def _on_this_device(oom: OutOfMemory) -> EditedSource | None:
    """``autocast`` of the GPU in place of another device, or where it is turned off."""
    for file in rewritings(oom):
        for call in nodes_of(file.tree, ast.Call):
            if name_of_call(call) != "autocast":
                continue
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            device = keywords.get("device_type", call.args[0] if call.args else None)
            if isinstance(device, ast.Constant) and device.value == "cpu":
                file.replace(device, '"cuda"')
            enabled = keywords.get("enabled")
            if isinstance(enabled, ast.Constant) and enabled.value is False:
                file.replace(enabled, "True")
            dtype = keywords.get("dtype")
            if dtype is not None and ast.unparse(dtype) in ("torch.float32", "torch.float"):
                file.replace(dtype, "torch.bfloat16")
        if file.is_changed:
            return changed_source(file)
    return None
