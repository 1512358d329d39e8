"""The program limits itself to a part of the GPU."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy


class MemoryFraction(Cause):
    """PyTorch may use a part of the GPU only."""

    name = "the memory fraction"
    order = 10
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        request = oom.request
        if request.allowed is None or request.segment > request.free:
            return None
        percent = -(-100 * (request.reserved + request.segment) // request.capacity)
        return self.found(
            request.segment,
            f"PyTorch may use {prose_size(request.allowed)} only: set_per_process_memory_fraction",
            f"torch.cuda.set_per_process_memory_fraction({percent / 100:.2f}, {request.device})",
        )
