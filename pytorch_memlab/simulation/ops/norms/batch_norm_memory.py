"""PyTorch's own batch norm: where blocks of threads stage partial sums over a channel."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import has_channels_last
from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_PER_THREAD: Final = 16
_TILE: Final = 32
_BLOCK: Final = 512
_MOST_ROWS: Final = 128
_FEWEST_ROWS: Final = 8


def staging_rows(reduced: int, channels: int) -> tuple[int, int]:
    """How many blocks share the reduction of a channel, and how many there are of channels.

    The rule is that of ``flexible_launch_configs``, ``native/cuda/Normalization.cuh``.

    >>> staging_rows(64, 10), staging_rows(100_000, 64)
    ((1, 2), (128, 2))
    """
    width = min(_power_of_two(channels), _TILE)
    height = min(_power_of_two(ceil(reduced / _PER_THREAD)), _BLOCK // width)
    if width * height != _BLOCK:
        width = min(_power_of_two(channels), _BLOCK // height)
    rows = min(ceil(reduced / (height * _PER_THREAD)), _MOST_ROWS)
    return (1 if rows < _FEWEST_ROWS else rows), ceil(channels / width)


def forward(call: OpCall) -> None:
    """Statistics of channels that lie last are staged between blocks of threads."""
    tensor = call.args[0]
    if call.argument(5, "training") and has_channels_last(tensor):
        _stage(call, tensor, 4)


def backward(call: OpCall) -> None:
    """Sums over each channel, before the gradients that need them."""
    gradient, tensor = call.args[:2]
    mean = call.args[5]
    wants_input = call.args[9][0]
    result, weight_gradient, bias_gradient = call.result
    if wants_input and not has_channels_last(tensor):
        if not _reshapes_freely(gradient):
            call.alloc_copy(gradient)
        return
    if call.args[7] or call.args[9][1] or call.args[9][2]:
        is_staged = has_channels_last(tensor) and has_channels_last(gradient)
        if is_staged or wants_input:
            for _sum in range(2):
                call.alloc_temp(tensor.shape[1] * mean.element_size())
        call.alloc_outputs(weight_gradient, bias_gradient)
        if is_staged:
            with call.scope():
                _stage(call, tensor, 2)
    call.alloc_outputs(result)


def statistics(call: OpCall) -> None:
    """``batch_norm_stats``: those of channels that lie last are staged."""
    tensor = call.args[0]
    if has_channels_last(tensor):
        _stage(call, tensor, 4)


def sums(call: OpCall) -> None:
    """``batch_norm_backward_reduce``: two sums over each channel, staged likewise."""
    gradient, tensor = call.args[:2]
    if has_channels_last(gradient) and has_channels_last(tensor):
        _stage(call, tensor, 2)


def _stage(call: OpCall, tensor: torch.Tensor, values: int) -> None:
    channels = tensor.shape[1]
    rows, columns = staging_rows(tensor.numel() // channels, channels)
    if rows > 1:
        call.alloc_temp(values * channels * rows * (8 if tensor.dtype == torch.float64 else 4))
        call.alloc_temp(columns * 4)


def _reshapes_freely(gradient: torch.Tensor) -> bool:
    """Whether a gradient is a view when its dimensions after the second become one."""
    try:
        gradient.view(*gradient.shape[:2], -1)
    except RuntimeError:
        return False
    return True


def _power_of_two(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (max(number, 1).bit_length() - 1)


_SOURCE: Final = "aten/src/ATen/native/cuda/Normalization.cu, Normalization.cuh"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::native_batch_norm": Entry(forward, _SOURCE, Basis.SOURCE),
    "aten::native_batch_norm_backward": Entry(nothing, _SOURCE, Basis.SOURCE, make=backward),
    "aten::batch_norm_stats": Entry(statistics, _SOURCE, Basis.SOURCE),
    "aten::batch_norm_gather_stats_with_counts": Entry(nothing, _SOURCE, Basis.SOURCE),
    "aten::batch_norm_elemt": Entry(nothing, _SOURCE, Basis.SOURCE),
    "aten::batch_norm_backward_reduce": Entry(sums, _SOURCE, Basis.SOURCE),
    "aten::batch_norm_backward_elemt": Entry(nothing, _SOURCE, Basis.SOURCE),
}
