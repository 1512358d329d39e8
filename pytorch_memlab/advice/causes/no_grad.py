"""Autograd saves what no backward pass needs."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import without_gradients
from ..evidence import is_kept, is_much
from ..forward_only import calls_at, forward_only_place
from ..rewriting import changed_code


class NoGrad(Cause):
    """A forward pass without a backward pass keeps its activations."""

    name = "autograd saves what no backward pass needs"
    order = 40
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        saved = oom.of_category(Category.SAVED)
        if oom.node or not is_much(saved, oom):
            return None
        place = forward_only_place(oom)
        is_evaluation = place is not None and (place.is_function or oom.model.is_evaluating)
        if place is None or (not is_evaluation and is_kept(oom, saved)):
            return None
        calls = calls_at(place)
        made = [
            block
            for block in oom.blocks
            if block.category == Category.SAVED
            and (
                calls is None
                or block.place is None
                or block.place.file != place.file
                or calls.makes(block.place)
            )
        ]
        if not is_much(sum(block.size for block in made), oom):  # another statement made the graphs
            return None
        # What a variable leads to stays without a graph too.
        unnamed = sum(block.size for block in made if not block.name)
        change = without_gradients(place.file, place.line, is_function=place.is_function)
        where = "on the function of" if place.is_function else "around"
        return self.found(
            unnamed,
            f"autograd saved {prose_size(saved)} that no backward pass reads",
            *(changed_code(change) or [f"torch.no_grad()  # {where} line {place.line}"]),
            change=change,
        )
