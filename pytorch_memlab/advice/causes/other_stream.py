"""Free memory belongs to another stream."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy


class OtherStream(Cause):
    """The allocator never gives a block of one stream to another one."""

    name = "memory cached for another stream"
    order = 30
    has_edit = False

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        request = oom.request
        cached = sum(b.size for b in request.free_blocks if b.stream != request.stream)
        check = next((check for check in oom.checks if check.fits and not check.settings), None)
        if not cached or check is None:
            return None
        return self.found(
            cached,
            f"{prose_size(cached)} are cached for another stream, and blocks never change streams",
            f"make these tensors on one stream (checked: {check.requests} requests fit)",
            basis=Basis.CHECKED,
        )
