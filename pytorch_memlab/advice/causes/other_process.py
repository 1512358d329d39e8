"""Other processes hold a part of the GPU."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy


class OtherProcess(Cause):
    """The GPU is shared."""

    name = "another process"
    order = 20
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        others = oom.request.others or 0
        if others < oom.shortage or others * 10 < oom.request.capacity:
            return None
        return self.found(
            others,
            f"other processes hold {prose_size(others)} of this GPU",
            "nvidia-smi  # names them; CUDA_VISIBLE_DEVICES=1 takes another GPU",
        )
