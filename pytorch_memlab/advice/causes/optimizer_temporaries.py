"""The optimizer makes temporaries for all parameters at once."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...fitting.remedies.catalogue import chosen
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy
from ..evidence import is_in_optimizer, makes_state

_WITH_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class OptimizerTemporaries(Cause):
    """A step of a foreach implementation makes temporaries for all parameters."""

    name = "temporaries of the optimizer"
    order = 160

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if not is_in_optimizer(oom) or makes_state(oom):
            return None
        for optimizer in oom.optimizers:
            if optimizer.uses_foreach and optimizer.name in _WITH_FUSED:
                size = oom.of_category(Category.TEMPORARIES) + oom.request.requested
                size = max(size, optimizer.parameters)
                return self.found(
                    size,
                    f"{optimizer.name} makes temporaries for all parameters: {prose_size(size)}",
                    f"torch.optim.{optimizer.name}(parameters, fused=True)",
                    change=chosen(["fused"])[0],
                )
        return None
