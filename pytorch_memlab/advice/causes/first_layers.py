"""The first layers, at full resolution, save more than all that follow."""

from __future__ import annotations

from collections import Counter
from math import prod

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, Results, at_line
from ..forward_in_half import refuses_autocast, under_autocast, uses_half
from ..rewriting import changed_code

_FULL = 128 * 128
"""Numbers of a channel from which on an image counts as a large one."""

_OF_IMAGES = ("Conv", "CudnnConv", "NativeBatchNorm", "CudnnBatchNorm", "MaxPool", "AvgPool")
"""Beginnings of names of nodes that save images. Scores of attention have 4 dimensions too."""


class FirstLayers(Cause):
    """Images at full resolution, with many channels, are saved for backward."""

    name = "first layers at full resolution"
    order = 186
    results = Results.BFLOAT16
    scales_with_batch = True

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        sizes = Counter[tuple[int, ...]]()
        of_images: set[tuple[int, ...]] = set()
        for block in oom.blocks:
            is_activation = block.category in (Category.SAVED, Category.TEMPORARIES)
            if is_activation and len(block.shape) > 3:
                sizes[block.shape[2:]] += block.size
            if block.node.startswith(_OF_IMAGES):
                of_images.add(block.shape[2:])
        resolution = max(sizes, key=prod, default=())
        size, requested = sizes[resolution], oom.request.requested
        if prod(resolution) < _FULL or resolution not in of_images or uses_half(oom):
            return None
        if requested >= max(block.size for block in oom.blocks if block.shape[2:] == resolution):
            size += requested  # it is of no smaller resolution
        if size * 3 < oom.in_use + requested or refuses_autocast(oom):
            return None
        change = under_autocast(oom)
        lines = [holder.place.line for holder in oom.by_line() if holder.place is not None]
        return self.found(
            size // 2,
            f"layers at {' x '.join(map(str, resolution))}{at_line(lines[0] if lines else 0)} save"
            f" {prose_size(size)} for backward",
            *(changed_code(change) or ['with torch.autocast("cuda"):  # around the forward pass']),
            basis=Basis.ESTIMATED,
            effect="convolutions in 16 bits",
            change=change,
        )
