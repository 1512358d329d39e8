"""A container keeps tensors with the graphs that made them."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...fitting.target import Change
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..cause import Cause, Remedy
from ..changes import edited_source, replaced
from ..evidence import Addition, is_much, line_that_adds, named_with_line
from ..forward_only import reaches_backward


class KeptGraphs(Cause):
    """Tensors in a container keep the graphs that made them."""

    name = "a list of tensors with their graphs"
    order = 60

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            added = line_that_adds(oom, group)
            # A pair may be the state of a recurrent layer, unless it was appended to.
            is_container = not group.is_variable and (group.tensors >= 3 or added.line)
            if is_container and group.graphs > group.own and is_much(group.graphs, oom):
                return self.found(
                    group.graphs,
                    f"{named_with_line(group.name, added.line)} keeps {group.tensors} tensors"
                    f" with their graphs: {prose_size(group.graphs)}",
                    _without_graph(group, added),
                    change=_change(group, added),
                )
        return None


def _change(group: TensorGroup, added: Addition) -> Change | None:
    if not added.value or reaches_backward(added.file, added.line):
        return None
    old = f"{group.name}.append({added.value})"
    call = ".item()" if group.elements == 1 else ".detach()"
    new = f"{group.name}.append({added.value}{call})"
    return edited_source(replaced(added.file, added.line, old, new))


def _without_graph(group: TensorGroup, added: Addition) -> str:
    """The line that keeps no graph: a number for one element, otherwise a tensor."""
    call = ".item()" if group.elements == 1 else ".detach()"
    if added.value:
        line = f"{group.name}.append({added.value}{call})"
        # The graphs are for a backward pass over all: gradients of one after the other add up.
        if reaches_backward(added.file, added.line):
            return f"{added.value}.backward(); {line}  # in place of backward over {group.name}"
        return line
    kind = "numbers" if group.elements == 1 else "tensors without graphs"
    return f"keep {kind} in {group.name}: {call}"
