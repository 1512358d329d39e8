"""A container keeps tensors with the graphs that made them."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..around_program import Edit
from ..cause import Cause, Remedy, Results
from ..changes import edited_source, kept_as
from ..evidence import Addition, is_much, line_that_adds, named_with_line
from ..forward_only import reaches_backward


class KeptGraphs(Cause):
    """Tensors in a container keep the graphs that made them."""

    name = "a list of tensors with their graphs"
    order = 60
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.is_variable or group.graphs <= group.own or not is_much(group.graphs, oom):
                continue
            added = line_that_adds(oom, group)
            # A pair may be the state of a recurrent layer, unless it was appended to.
            if group.tensors < 3 and not added.line:
                continue
            is_needed = bool(added.line) and reaches_backward(*added)
            edit = _edit(group, added)
            return self.found(
                group.graphs,
                f"{named_with_line(group.name, added.line)} keeps {group.tensors} tensors with"
                f" their graphs: {prose_size(group.graphs)}",
                _code(group, edit, is_needed=is_needed),
                change=None if is_needed else edited_source(edit),
            )
        return None


def _method(group: TensorGroup) -> str:
    """The method that keeps no graph: a number for one element, otherwise a tensor."""
    return "item" if group.elements == 1 else "detach"


def _edit(group: TensorGroup, added: Addition) -> Edit | None:
    return kept_as(*added, group.name, _method(group)) if added.line else None


def _code(group: TensorGroup, edit: Edit | None, *, is_needed: bool) -> str:
    if is_needed:  # gradients of one after the other add up
        return f"backward() of each value at once, not of all that {group.name} keeps"
    if edit is not None:
        return edit.lines[0].strip()
    kind = "numbers" if group.elements == 1 else "tensors without graphs"
    return f"keep {kind} in {group.name}: .{_method(group)}()"
