"""What of a GPU's memory PyTorch's allocator never gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..allocator.out_of_memory import format_size
from ..hardware.sizes import read_size

if TYPE_CHECKING:
    from ..hardware.gpu import GPU


@dataclass(frozen=True, slots=True)
class TakenMemory:
    """Memory of each GPU that is gone before the first tensor comes.

    A program can learn what is free only by calls that make the context, so whether it is taken
    from the start or at the first use of the GPU is the same to it.

    Args:
        context: bytes of CUDA's context, the kernels and the libraries' handles.
        others: bytes that other processes hold.
        is_estimate: whether ``context`` is ours, not the user's.
    """

    context: int = 0
    others: int = 0
    is_estimate: bool = False

    @classmethod
    def of(cls, gpu: GPU, context: str | int | None, others: str | int) -> TakenMemory:
        """Read what the user said.

        Args:
            gpu: which hardware.
            context: a size, or None for the estimate that goes with the hardware.
            others: a size.

        Raises:
            UsageError: one is no size, or they leave nothing.
        """
        size = gpu.context if context is None else read_size("context", context)
        taken = cls(size, read_size("others", others), context is None and size > 0)
        if taken.context + taken.others >= gpu.total_memory:
            raise UsageError(
                f"nothing is left of the GPU's {format_size(gpu.total_memory)}: its context takes "
                f"{format_size(taken.context)}, other processes {format_size(taken.others)}"
            )
        return taken

    def note(self, gpu: GPU) -> str | None:
        """What to say beside an error of the GPU, None where the user said all of it.

        Args:
            gpu: which hardware.
        """
        if not self.is_estimate:
            return None
        return (
            f"{gpu.name} is simulated: {format_size(self.context)} of its memory count as taken by "
            "the CUDA context, an estimate; simulate(..., context=...) or --cuda-context gives "
            "another"
        )
