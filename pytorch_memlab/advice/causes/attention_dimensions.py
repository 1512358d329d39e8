"""``scaled_dot_product_attention`` of three dimensions, for which no fused kernel runs."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, at_line
from ..evidence import is_score_matrix


class AttentionDimensions(Cause):
    """No fused kernel of attention takes three dimensions."""

    name = "attention with three dimensions"
    order = 80

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for call in oom.attention:
            line = (call.file, call.line)
            size = sum(
                block.size
                for block in oom.blocks
                if block.place is not None
                and (block.place.file, block.place.line) == line
                and is_score_matrix(block)
            )
            if oom.frames and oom.frames[0].place == call:
                size += oom.request.requested
            if size >= oom.shortage:
                return self.found(
                    size,
                    f"attention{at_line(call.line)} has 3 dimensions, so no fused kernel runs:"
                    f" {prose_size(size)}",
                    "q, k, v = (x.unsqueeze(1) for x in (q, k, v))  # and result.squeeze(1)",
                )
        return None
