"""A sum of losses keeps the graph of each of them."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import EditedSource, edited_source, sum_of_numbers
from ..evidence import is_much, named_with_line
from ..rewriting import changed_code
from ..running_sums import Addition, addition_to


class RunningSum(Cause):
    """Each addition keeps the graph of its loss."""

    name = "a running sum of losses"
    order = 50
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.running_sums >= 2 and is_much(group.graphs, oom):
                addition = addition_to(oom, group.name)
                if addition is not None and addition.backward is not None:
                    continue  # the gradient of the sum is needed
                line = 0 if addition is None else addition.line
                change = None if addition is None else _of_numbers(addition)
                return self.found(
                    group.graphs,
                    f"{named_with_line(group.name, line)} keeps the graphs of"
                    f" {group.running_sums} additions: {prose_size(group.graphs)}",
                    *(changed_code(change) or [f"{group.name} += loss.item()"]),
                    change=change,
                )
        return None


def _of_numbers(addition: Addition) -> EditedSource | None:
    return edited_source(sum_of_numbers(addition.file.file, addition.line, addition.sum))
