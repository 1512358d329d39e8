"""Memory formats as CUDA's kernels choose them."""

from __future__ import annotations

from typing import Final

import torch
from torch._prims_common import suggest_memory_format

LOW_PRECISION: Final = (torch.float16, torch.bfloat16)

_INT32: Final = 2**31 - 1

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """What ``suggest_memory_format`` of C++ tells of a tensor.

    Args:
        tensor: of any number of dimensions.

    Returns:
        channels last if the strides of four or five dimensions say so, else contiguous.

    >>> suggested(torch.empty(2, 3, 4, 5, device="meta"))
    torch.contiguous_format
    """
    if tensor.dim() not in _CHANNELS_LAST:
        return torch.contiguous_format
    return suggest_memory_format(tensor)


def convolved(tensor: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The format in which cuDNN convolves (``cudnn_conv_suggest_memory_format``, ConvUtils.h).

    Args:
        tensor: that is convolved, with a batch.
        weight: of as many dimensions.

    Returns:
        channels last if either has them, and neither is double; else contiguous.
    """
    if torch.float64 in (tensor.dtype, weight.dtype):
        return torch.contiguous_format
    wanted = _CHANNELS_LAST.get(weight.dim())
    if wanted is not None and wanted in (suggested(tensor), suggested(weight)):
        return wanted
    return torch.contiguous_format


def has_channels_last(tensor: torch.Tensor) -> bool:
    """Whether batch norm runs for channels last (``batch_norm_use_channels_last_kernels``).

    Args:
        tensor: of shape (batch, channels, ...).

    Returns:
        whether its channels lie densely beside each other, with indices of 32 bits.
    """
    if tensor.numel() >= _INT32:
        return False
    if tensor.is_contiguous() and tensor.stride(1) == 1:
        return True
    wanted = _CHANNELS_LAST.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted)


def accumulated_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which CUDA accumulates (``toAccumulateType``).

    >>> accumulated_in(torch.bfloat16), accumulated_in(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in LOW_PRECISION else dtype
