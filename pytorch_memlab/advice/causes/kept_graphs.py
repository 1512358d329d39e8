"""A container keeps tensors with the graphs that made them."""

from __future__ import annotations

from dataclasses import replace

from ..._common.text.prose_size import counted, prose_size
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..additions import adding_statement, keep_less, keeping_less
from ..carried_states import carried_into, without_graph
from ..cause import Cause, Remedy, Results
from ..evidence import is_much, named_with_line
from ..forward_only import loop_trains, reaches_backward
from ..rewriting import changed_code, changed_source, loop_around


class KeptGraphs(Cause):
    """Tensors in a container keep the graphs that made them."""

    name = "a list of tensors with their graphs"
    order = 60
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.is_variable:
                continue
            if group.graphs <= group.own or not is_much(group.graphs, oom):
                carried = self._of_carried(oom, group)
                if carried is not None:
                    return carried
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

    def _of_carried(self, oom: OutOfMemory, group: TensorGroup) -> Remedy | None:
        """The remedy for states that a step gives to the next one too; None if they are none."""
        adding, graphs = adding_statement(oom, group), group.graphs + group.shared
        names = [] if adding is None else carried_into(adding)
        if adding is None or not names or graphs <= group.own or not is_much(graphs, oom):
            return None
        file, loop = adding.file, loop_around(adding.file.tree, adding.line)
        # A backward pass behind the loop runs through all its steps.
        if loop is None or (
            reaches_backward(file.file, adding.line) and not loop_trains(file.file, adding.line)
        ):
            return None
        keep_less(oom, group, adding, "detach")
        last = loop.body[-1]
        new = [without_graph(oom, file.tree, name) for name in names]
        file.insert_lines((last.end_lineno or 0) + 1, last.col_offset, new)
        change = changed_source(file)
        carried = " and ".join(names)
        return replace(
            self.found(
                graphs,
                f"{named_with_line(group.name, adding.line)} keeps"
                f" {counted(group.tensors, 'tensor')} with their graphs, and {carried} those of all"
                f" steps: {prose_size(graphs)}",
                *(changed_code(change) or new),
                change=change,
            ),
            results=Results.UNKNOWN,  # a backward pass of later steps may run through them
        )

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
