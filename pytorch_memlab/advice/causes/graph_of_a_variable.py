"""A variable keeps a graph that no backward pass reads, such as that of images to look at."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import without_gradients
from ..evidence import is_much
from ..forward_only import results_without_backward
from ..rewriting import changed_code, program_files


class GraphOfAVariable(Cause):
    """A variable keeps the graph of a result that was read without it."""

    name = "a variable with a graph that no backward pass reads"
    order = 44
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            if not group.is_variable or group.tensors > 1 or not is_much(group.graphs, oom):
                continue
            for file in program_files(oom):
                for line in results_without_backward(file, group.name):
                    change = without_gradients(file, line, is_function=False)
                    return self.found(
                        group.graphs,
                        f"{group.name} (line {line}) keeps a graph that no backward pass reads:"
                        f" {prose_size(group.graphs)}",
                        *(changed_code(change) or [f"torch.no_grad()  # around line {line}"]),
                        change=change,
                    )
        return None
