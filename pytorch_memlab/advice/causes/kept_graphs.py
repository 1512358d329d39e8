"""A container keeps tensors with the graphs that made them."""

from __future__ import annotations

from dataclasses import replace

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
            detached = self._of(group, added, "detach")
            if group.elements > 1:
                return detached
            # The program may call methods of what it keeps, which a number has not.
            return replace(self._of(group, added, "item"), otherwise=detached)
        return None

    def _of(self, group: TensorGroup, added: Addition, method: str) -> Remedy:
        is_needed = bool(added.line) and reaches_backward(*added)
        edit = kept_as(*added, group.name, method) if added.line else None
        return self.found(
            group.graphs,
            f"{named_with_line(group.name, added.line)} keeps {group.tensors} tensors with"
            f" their graphs: {prose_size(group.graphs)}",
            _code(group, edit, method, is_needed=is_needed),
            change=None if is_needed else edited_source(edit),
        )


def _code(group: TensorGroup, edit: Edit | None, method: str, *, is_needed: bool) -> str:
    if is_needed:  # gradients of one after the other add up
        return f"backward() of each value at once, not of all that {group.name} keeps"
    if edit is not None:
        return edit.lines[0].strip()
    kind = "numbers" if method == "item" else "tensors without graphs"
    return f"keep {kind} in {group.name}: .{method}()"
