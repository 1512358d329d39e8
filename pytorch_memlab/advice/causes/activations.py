"""Repeated modules save their activations for backward."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...fitting.remedies.catalogue import chosen
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, saves
from ..evidence import is_much


class Activations(Cause):
    """Modules of one class, one after the other, save their activations."""

    name = "activations of repeated modules"
    order = 190
    scales_with_batch = True

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        model = oom.model
        whole = sum(
            block.size
            for block in oom.blocks
            if block.is_in_repeated and block.category in (Category.SAVED, Category.TEMPORARIES)
        )
        if model.repeats < 2 or not is_much(whole, oom):
            return None
        size = whole - whole // model.repeats  # one of them is computed again at a time
        return self.found(
            size,
            f"{model.repeats} modules in {model.repeated} saved {prose_size(whole)} for backward",
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            basis=Basis.ESTIMATED,
            effect=saves(size, Basis.ESTIMATED),
            change=chosen(["checkpoint"])[0],
        )
