"""Gradients of the step before are still there in the forward pass."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...fitting.remedies.catalogue import chosen
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy
from ..evidence import is_in_optimizer


class GradientsKept(Cause):
    """A forward pass runs while the gradients of the last step are in use."""

    name = "gradients of the step before"
    order = 130

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        gradients = oom.of_category(Category.GRADIENTS)
        if oom.node or is_in_optimizer(oom) or not gradients or gradients < oom.shortage:
            return None
        return self.found(
            gradients,
            f"gradients of the step before take {prose_size(gradients)}",
            "optimizer.zero_grad(set_to_none=True)  # before the forward pass",
            change=chosen(["set_to_none"])[0],
        )
