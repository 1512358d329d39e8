"""A sum of losses keeps the graph of each of them."""

from __future__ import annotations

import re

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import edited_source, sum_of_numbers
from ..evidence import is_much, named_with_line, place_with


class RunningSum(Cause):
    """Each addition keeps the graph of its loss."""

    name = "a running sum of losses"
    order = 50
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if group.running_sums >= 2 and is_much(group.graphs, oom):
                file, line = place_with(oom, rf"\b{re.escape(group.name)}\s*(\+=|=.*\+)")
                edit = sum_of_numbers(file, line, group.name)
                return self.found(
                    group.graphs,
                    f"{named_with_line(group.name, line)} keeps the graphs of"
                    f" {group.running_sums} additions: {prose_size(group.graphs)}",
                    f"{group.name} += loss.item()" if edit is None else edit.lines[0].strip(),
                    change=edited_source(edit),
                )
        return None
