"""``torch.histc`` of integers, of which CUDA has a kernel and the host has none."""

from __future__ import annotations

import torch


def histc(tensor: torch.Tensor, bins: int = 100, low: int = 0, high: int = 0) -> torch.Tensor:
    """How many elements fall into each of some bins of equal width.

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
