"""The compiler times products that it may pad, on its own matrices."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, saves
from ..inductor_options import InductorOptions, bytes_to_time


class NoPadding(InductorOptions):
    """No product is padded, and none is timed for that."""

    name = "no_padding"
    what_it_changes = "time: products with odd rows are slower"
    reason_if_used = "the program pads no product"


class TimedProducts(Cause):
    """Memory runs out while a product is timed."""

    name = "the compiler times products"
    order = 5
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        size = bytes_to_time(oom, "_should_pad", "pad_mm.py")
        if size is None:
            return None
        change = NoPadding({"shape_padding": False})
        return self.found(
            size,
            f"Inductor takes {prose_size(size)} to time a product that it may pad",
            *change.code,
            effect=saves(size),
            change=change,
        )
