"""The compiler times products that it may pad, on its own matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied
from ..cause import Cause, Remedy, Results, saves
from ..evidence import unnamed_at

_CODE = (
    "import torch._inductor.config",
    "torch._inductor.config.shape_padding = False  # before the first compiled call",
)
_TIMING = ("_should_pad", "pad_mm.py")
"""The function of Inductor that times a product, and its file."""


class NoPadding(AroundProgram):
    """No product is padded, and none is timed for that."""

    name = "no_padding"
    what_it_changes = "time: products with odd rows are slower"

    @contextmanager
    def applied(self) -> Iterator[None]:
        from torch._inductor import config

        self._was_on = config.shape_padding
        with config.patch(shape_padding=False):
            yield

    def finding(self) -> Finding:
        return applied(_CODE) if self._was_on else already_used("the program pads no product")


class TimedProducts(Cause):
    """Memory runs out while a product is timed."""

    name = "the compiler times products"
    order = 5
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        function, file = _TIMING
        is_timed = any(name == function and path.endswith(file) for name, path in oom.functions)
        if not is_timed or not oom.frames:
            return None
        size = oom.request.requested + unnamed_at(oom, oom.frames[0].place)
        return self.found(
            size,
            f"Inductor takes {prose_size(size)} to time a product that it may pad",
            *_CODE,
            effect=saves(size),
            change=NoPadding(),
        )
