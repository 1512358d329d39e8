"""IPython keeps the results of cells, which the user may have forgotten."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ..._common.text.quoted import listed
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy


class ResultsOfCells(Cause):
    """Tensors that ended a cell are in ``Out``, ``_`` and ``_2``, and some would make room."""

    name = "results of cells"
    order = 25
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        from ...reporter.names import are_results

        blocks = [block for block in oom.blocks if are_results(block.name)]
        size = sum(block.size for block in blocks)
        if not size or size < oom.shortage:
            return None
        names = listed(dict.fromkeys(block.name.partition("]")[0] + "]" for block in blocks))
        return self.found(
            size,
            f"IPython keeps {prose_size(size)} as results of cells: {names}",
            "%reset -f out",
            "get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)",
        )
