"""A simulated GPU that refuses the request which would bring its memory to a peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from .._common.patching.patches import Patches
from .._common.text.prose_size import prose_size
from ..simulation.allocator.out_of_memory import DeviceOutOfMemoryError

if TYPE_CHECKING:
    from ..simulation.inspect import SimulatedGPU

_SLACK: Final = 2**20
"""Bytes by which a block may be larger than its request: the allocator splits no small rest off."""
_PART: Final = 50


@contextmanager
def refused_peak(gpu: SimulatedGPU, peak: int) -> Iterator[None]:
    """Refuse the first request with which about so many bytes would be in use."""
    allocator = gpu.allocator
    original = allocator.malloc
    limit = peak - min(_SLACK, peak // _PART)

    def malloc(size: int, *args: Any) -> int:
        if size > 0 and allocator.active_bytes + allocator.settings.round_size(size) >= limit:
            patches.undo()
            raise DeviceOutOfMemoryError(f"the program stops at its peak of {prose_size(peak)}")
        return original(size, *args)

    with Patches() as patches:
        patches.set(allocator, "malloc", malloc)
        yield
