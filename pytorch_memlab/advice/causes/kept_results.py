"""A container keeps results on the GPU."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import edited_source, kept_as
from ..evidence import is_much, line_that_adds, named_with_line
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
            copy = second_copy(oom)
            if copy is not None and copy[0] == group.name:
                continue
            added = line_that_adds(oom, group)
            edit = kept_as(*added, group.name, "cpu") if added.line else None
            return self.found(
                group.own,
                f"{named_with_line(group.name, added.line)} keeps {group.tensors} tensors on the"
                f" GPU: {prose_size(group.own)}",
                f"keep copies in host memory in {group.name}: .cpu()"
                if edit is None
                else edit.lines[0].strip(),
                change=edited_source(edit),
            )
        return None
