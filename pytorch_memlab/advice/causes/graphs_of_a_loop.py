"""Several lists, or a list and what is made of it, keep the graphs of a loop that trains nothing.

Such is the rollout of an agent: its update computes the same again, with a graph, and reads the
values of the rollout without one.
"""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..cause import Cause, Remedy, Results
from ..changes import without_gradients
from ..evidence import is_much
from ..forward_only import StatementCalls, fills_without_backward
from ..rewriting import changed_code, program_files
from .no_grad import NoGrad


class GraphsOfALoop(Cause):
    """A loop without a backward pass keeps the graph of each of its steps."""

    name = "graphs of a loop that trains nothing"
    order = 46
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        lists = [group for group in oom.groups if not group.is_variable]
        if NoGrad().remedy(oom) is not None:  # the call runs, and is named already
            return None
        # What a single list keeps, it keeps no longer where its tensors are detached.
        if any(group.graphs > group.own and is_much(group.graphs, oom) for group in lists):
            return None
        keeping = [group for group in lists if is_much(group.after_first, oom)]
        for file in program_files(oom) if keeping else ():
            fills = list(fills_without_backward(file))
            calls = [
                (_made_by(call, oom), call, group)
                for group in keeping
                for call, reached in fills
                if group.name in reached
            ]
            if not calls:
                continue
            made, most, _ = max(calls, key=lambda filling: filling[0])
            filled = [group for _, call, group in calls if call == most]
            size = min(made, max(group.after_first for group in filled))
            if is_much(size, oom):
                return self._around(file, most, filled, size)
        return None

    def _around(
        self, file: str, call: StatementCalls, filled: list[TensorGroup], size: int
    ) -> Remedy:
        change = without_gradients(file, call.first, is_function=False)
        names = " and ".join(group.name for group in filled)
        return self.found(
            size,
            f"{names} keep{'s' * (len(filled) == 1)} graphs of line {call.first} that no backward"
            f" pass reads: {prose_size(size)}",
            *(changed_code(change) or [f"torch.no_grad()  # around line {call.first}"]),
            change=change,
        )


def _made_by(call: StatementCalls, oom: OutOfMemory) -> int:
    """Bytes that autograd saved of what a statement computed."""
    return sum(
        block.size
        for block in oom.blocks
        if block.category is Category.SAVED
        and not block.name
        and block.place is not None
        and call.makes(block.place)
    )
