"""One tensor is larger than the GPU."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy


class TooLarge(Cause):
    """One request is larger than the memory of the GPU."""

    name = "one tensor larger than the GPU"
    order = 110
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        request = oom.request
        room = request.capacity - (request.context or 0) - (request.others or 0)
        if request.requested <= room:
            return None
        parts = -(-4 * request.requested // room)
        return self.found(
            request.requested,
            f"one tensor of {prose_size(request.requested)} is larger than the GPU, which has"
            f" {prose_size(room)}",
            f"for part in tensor.chunk({parts}): ...  # in place of all at once",
        )
