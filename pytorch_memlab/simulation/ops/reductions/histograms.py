"""``torch.histc``: of integers CUDA has a kernel, and the CPU has none."""

from __future__ import annotations

import torch

from ..op_call import OpCall
from ..reduction_workspace import alloc_extremes_workspace
from ..registry import op


def histc(tensor: torch.Tensor, bins: int = 100, low: int = 0, high: int = 0) -> torch.Tensor:
    """The number of elements in each of some bins of equal width.

    The bin of an integer is found in integers (aten/src/ATen/native/cuda/SummaryOps.cu).

    >>> histc(torch.tensor([0, 1, 1, 3, 7]), 4, 0, 3).tolist()
    [1, 2, 0, 1]
    """
    if tensor.is_floating_point():
        return torch.histc(tensor, bins, low, high)
    low, high = int(low), int(high)
    if low == high and tensor.numel():
        low, high = int(tensor.min()), int(tensor.max())
    if low == high:
        low, high = low - 1, high + 1
    inside = tensor[(tensor >= low) & (tensor <= high)].long()
    # The largest element belongs to the last bin, which it would be the end of.
    numbers = ((inside - low) * bins // (high - low)).clamp_max(bins - 1)
    return numbers.bincount(minlength=bins).to(tensor.dtype)


@op("aten::histc", source="aten/src/ATen/native/cuda/SummaryOps.cu", reference=histc)
def _memory(call: OpCall) -> None:
    """The smallest and the largest element are found first, unless the program gives bounds."""
    tensor: torch.Tensor = call.args[0]
    call.alloc_outputs()
    if call.argument("min") != call.argument("max") or not tensor.numel():
        return
    for _ in ("smallest", "largest"):
        with call.scope():
            call.alloc_temp(tensor.element_size())
            alloc_extremes_workspace(call, tensor)
