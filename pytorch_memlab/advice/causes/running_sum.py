"""A sum of losses keeps the graph of each of them."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import edited_source, sum_of_numbers
from ..evidence import is_much, named_with_line
from ..rewriting import all_rewritings, changed_code, last_name, nodes_of


class RunningSum(Cause):
    """Each addition keeps the graph of its loss."""

    name = "a running sum of losses"
    order = 50
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.running_sums >= 2 and is_much(group.graphs, oom):
                file, line, target = _addition(oom, group.name)
                change = edited_source(sum_of_numbers(file, line, target))
                return self.found(
                    group.graphs,
                    f"{named_with_line(group.name, line)} keeps the graphs of"
                    f" {group.running_sums} additions: {prose_size(group.graphs)}",
                    *(changed_code(change) or [f"{group.name} += loss.item()"]),
                    change=change,
                )
        return None


def _addition(oom: OutOfMemory, name: str) -> tuple[str, int, str]:
    """The file and the line that add to a sum, and its name there; nothing if none does."""
    own = name.rpartition(".")[2]
    for file in all_rewritings(oom):
        for node in nodes_of(file.tree, ast.stmt):
            match node:
                case (
                    ast.AugAssign(target=target, op=ast.Add())
                    | ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add()))
                ) if last_name(target) == own:
                    return file.file, node.lineno, ast.unparse(target)
    return "", 0, ""
