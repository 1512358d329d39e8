"""A container keeps results on the GPU."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..additions import adding_statement, keeping_less
from ..cause import Cause, Remedy, Results
from ..evidence import is_much, named_with_line
from ..rewriting import changed_code
from .model_twice import second_copy


class KeptResults(Cause):
    """Tensors in a container stay on the GPU."""

    name = "a list of results"
    order = 150
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            is_container = not group.is_variable and group.tensors >= 3
            if not is_container or group.own < group.graphs or not is_much(group.own, oom):
                continue
            if _saved(oom, group) * 2 > group.own:  # a backward pass reads them on the GPU
                continue
            copy = second_copy(oom)
            if copy is not None and copy[0] == group.name:
                continue
            added = adding_statement(oom, group)
            change = keeping_less(oom, group, "cpu")
            return self.found(
                group.own,
                f"{named_with_line(group.name, 0 if added is None else added.line)} keeps"
                f" {group.tensors} tensors on the GPU: {prose_size(group.own)}",
                *(changed_code(change) or [f"keep copies in host memory in {group.name}: .cpu()"]),
                change=change,
            )
        return None


def _saved(oom: OutOfMemory, group: TensorGroup) -> int:
    """Bytes of a group that autograd keeps too."""
    return sum(
        block.size
        for block in oom.blocks
        if block.category is Category.SAVED and block.name.startswith(f"{group.name}[")
    )
