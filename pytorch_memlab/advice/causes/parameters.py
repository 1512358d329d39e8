"""The parameters alone take most of the GPU."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, saves

_MOVES = ("_apply", "convert", "load_state_dict", "__init__")


class Parameters(Cause):
    """The model alone nearly fills the GPU."""

    name = "the parameters"
    order = 180
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        model = oom.model
        moves = any(name in _MOVES for name, _ in oom.functions)
        if not moves or oom.of_category(Category.PARAMETERS) * 2 < oom.in_use or not model.float32:
            return None
        name, size = model.name or "model", model.float32 // 2
        return self.found(
            size,
            f"the parameters take {prose_size(model.parameters)}, most of the GPU",
            f"{name} = {name}.to(torch.bfloat16)  # before .cuda()",
            effect=saves(size),
        )
