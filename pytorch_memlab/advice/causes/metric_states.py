"""Metric objects keep all predictions on the GPU."""

from __future__ import annotations

import ast
import re

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..rewriting import (
    changed_code,
    changed_source,
    last_name,
    name_of_call,
    nodes_of,
    rewritings,
    set_keywords,
)


class MetricStates(Cause):
    """A metric of torchmetrics has lists of tensors as its state."""

    name = "states of a metric"
    order = 56
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        # A metric has several states, such as predictions and targets.
        sizes: dict[str, int] = {}
        for group in oom.groups:
            owner = group.name.rpartition(".")[0]
            if owner and not group.is_variable:
                sizes[owner] = sizes.get(owner, 0) + group.own + group.graphs
        # A library may have moved its metrics by now: the lines that filled them remain.
        for holder in oom.by_line():
            called = re.search(r"(\w+)\.update\(", holder.place.source) if holder.place else None
            if called is not None:
                sizes.setdefault(f".{called[1]}", holder.size)
        for owner, size in sizes.items():
            name = owner.rpartition(".")[2]
            change = _on_cpu(oom, name) if is_much(size, oom) else None
            if change is None:
                continue
            return self.found(
                size,
                f"the states of {name}{at_line(change.edits[0].first)} keep all that it was"
                f" updated with: {prose_size(size)}",
                *changed_code(change),
                effect="its result is computed on the CPU",
                change=change,
            )
        return None


def _on_cpu(oom: OutOfMemory, name: str) -> EditedSource | None:
    """The metric, with states in host memory; None if there is no such metric."""
    for file in rewritings(oom):
        if not _imports_metrics(file.tree):
            continue
        for node in nodes_of(file.tree, ast.Assign):
            calls = [
                call for call in nodes_of(node.value, ast.Call) if name_of_call(call)[:1].isupper()
            ]
            if calls and any(last_name(target) == name for target in node.targets):
                set_keywords(file, calls[-1], compute_on_cpu="True")
                return changed_source(file)
    return None


def _imports_metrics(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchmetrics"))
        or (
            isinstance(node, ast.Import)
            and any(alias.name.startswith("torchmetrics") for alias in node.names)
        )
        for node in ast.walk(tree)
    )
