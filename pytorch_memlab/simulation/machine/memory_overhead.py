"""The memory of a GPU that PyTorch's allocator never gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..allocator.out_of_memory import format_size
from ..hardware.sizes import read_size

if TYPE_CHECKING:
    from ..hardware.gpu import GPU


@dataclass(frozen=True, slots=True)
class MemoryOverhead:
    """The memory of each GPU that is taken before the first tensor is made.

    A program can only learn what is free by calls that make the context. So whether the context
    takes its memory at the start or at the first use of the GPU makes no difference to it.
    """

    context: int = 0  # bytes of the CUDA context: kernels, and handles of libraries
    other_processes: int = 0  # bytes that other processes use
    is_estimate: bool = False  # whether ``context`` is an estimate, not a size that the user gave

    @classmethod
    def of(cls, gpu: GPU, context: str | int | None, others: str | int) -> MemoryOverhead:
        """Read the sizes that the user gave; None is the estimate for the hardware."""
        size = gpu.context if context is None else read_size("context", context)
        overhead = cls(size, read_size("others", others), context is None and size > 0)
        if overhead.context + overhead.other_processes >= gpu.total_memory:
            raise UsageError(
                f"nothing is left of the GPU's {format_size(gpu.total_memory)}: its context takes "
                f"{format_size(overhead.context)}, "
                f"other processes {format_size(overhead.other_processes)}"
            )
        return overhead

    def note(self, gpu: GPU) -> str | None:
        """The sentence beside an error of the GPU; None where the user gave all sizes."""
        if not self.is_estimate:
            return None
        return (
            f"{gpu.name} is simulated: {format_size(self.context)} are assumed for the CUDA "
            "context (an estimate); pass simulate(..., context=...) or --cuda-context to change it"
        )
