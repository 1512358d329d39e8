"""``retain_graph=True`` keeps graphs over steps."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, at_line
from ..evidence import is_much, line_with


class RetainedGraph(Cause):
    """A graph that is kept leads to the graphs of all steps before."""

    name = "a graph that is kept over steps"
    order = 70

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        saved = oom.of_category(Category.SAVED)
        calls = any("retain_graph" in frame.calls_with for frame in oom.frames)
        is_asked_for = calls and not line_with(oom, r"retain_graph\s*=\s*False")
        if not is_asked_for or not is_much(saved, oom):
            return None
        return self.found(
            saved,
            f"retain_graph=True{at_line(line_with(oom, 'retain_graph'))} keeps the graphs of all"
            f" steps: about {prose_size(saved)}",
            "state = state.detach()  # between steps, without retain_graph",
            basis=Basis.ESTIMATED,
        )
