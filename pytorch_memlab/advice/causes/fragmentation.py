"""Cached memory lies in pieces that are too small."""

from __future__ import annotations

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy
from ..changes import AllocatorConfiguration


class Fragmentation(Cause):
    """Enough memory is cached, but no block is large enough."""

    name = "fragmentation"
    order = 140

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if oom.cached < oom.request.requested or oom.cached * 8 < oom.request.capacity:
            return None
        check = next((check for check in oom.checks if check.fits and check.settings), None)
        if check is None:
            return None
        word, later = (
            ("checked", "later ones may not") if check.is_whole else ("about", "others may not")
        )
        return self.found(
            oom.cached,
            f"{prose_size(oom.cached)} are cached in pieces that are too small",
            f"PYTORCH_CUDA_ALLOC_CONF={check.settings}",
            basis=Basis.CHECKED,
            change=AllocatorConfiguration(check.settings),
            effect=f"{word}: this request and the {check.requests:,} before it fit; {later}",
        )
