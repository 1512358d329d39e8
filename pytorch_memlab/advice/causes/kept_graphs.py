"""A container keeps tensors with the graphs that made them."""

from __future__ import annotations

from dataclasses import replace

from ..._common.text.prose_size import counted, prose_size
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..additions import adding_statement, keeping_less
from ..cause import Cause, Remedy, Results
from ..evidence import is_much, named_with_line
from ..forward_only import reaches_backward
from ..rewriting import changed_code


class KeptGraphs(Cause):
    """Tensors in a container keep the graphs that made them."""

    name = "a list of tensors with their graphs"
    order = 60
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.is_variable or group.graphs <= group.own or not is_much(group.graphs, oom):
                continue
            # A pair may be the state of a recurrent layer, unless it was appended to.
            if group.tensors < 3 and adding_statement(oom, group) is None:
                continue
            detached = self._of(oom, group, "detach")
            if group.elements > 1:
                return detached
            # The program may call methods of what it keeps, which a number has not; or it keeps
            # numbers too, which have no methods of a tensor.
            mixed = self._of(oom, group, "detach", is_mixed=True)
            detached = replace(detached, otherwise=mixed)
            return replace(self._of(oom, group, "item"), otherwise=detached)
        return None

    def _of(
        self, oom: OutOfMemory, group: TensorGroup, method: str, *, is_mixed: bool = False
    ) -> Remedy:
        added = adding_statement(oom, group)
        is_needed = added is not None and reaches_backward(added.file.file, added.line)
        change = None if is_needed else keeping_less(oom, group, method, is_mixed=is_mixed)
        graphs = "its graph" if group.tensors == 1 else "their graphs"
        return self.found(
            group.graphs,
            f"{named_with_line(group.name, 0 if added is None else added.line)} keeps"
            f" {counted(group.tensors, 'tensor')} with {graphs}: {prose_size(group.graphs)}",
            *(changed_code(change) or [_code(group, method, is_needed=is_needed)]),
            change=change,
        )


def _code(group: TensorGroup, method: str, *, is_needed: bool) -> str:
    if is_needed:  # gradients of one after the other add up
        return f"backward() of each value at once, not of all that {group.name} keeps"
    kind = "numbers" if method == "item" else "tensors without graphs"
    return f"keep {kind} in {group.name}: .{method}()"
