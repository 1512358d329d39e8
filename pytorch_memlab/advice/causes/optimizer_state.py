"""The state of the optimizer is larger than the parameters."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, saves
from ..evidence import is_in_optimizer, makes_state


class OptimizerState(Cause):
    """The first step of the optimizer makes its state."""

    name = "the state of the optimizer"
    order = 170
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if not is_in_optimizer(oom) or not makes_state(oom):
            return None
        for optimizer in oom.optimizers:
            if optimizer.parameters:
                whole, factored = 2 * optimizer.parameters, optimizer.factored
                return self.found(
                    whole - factored,
                    f"{optimizer.name} keeps {prose_size(whole)}, twice the parameters",
                    f"torch.optim.Adafactor(parameters)  # keeps {prose_size(factored)}",
                    effect=saves(whole - factored),
                )
        return None
