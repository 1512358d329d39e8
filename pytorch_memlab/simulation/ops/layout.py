"""How a tensor's elements lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie side by side, each once, in any order.

    Args:
        tensor: strided.
    """
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
