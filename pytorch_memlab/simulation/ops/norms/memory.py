"""Layer, RMS and group norms: statistics in float, and sums of the gradients of weights."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from ...hardware.decisions import decision
from ..memory_formats import LOW_PRECISION
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...hardware.gpu import GPU
    from ..op_call import OpCall

_COLUMNS: Final = 32
"""Columns that a block of threads sums over, and rows that it takes at least."""

_TALL: Final = 64 * 1024
_MOST_BLOCKS: Final = 64 * 1024 // 2


def layer_inputs(call: OpCall) -> None:
    """``native_layer_norm``, before its results: contiguous inputs."""
    call.alloc_contiguous(call.args[0], call.argument(2, "weight"), call.argument(3, "bias"))


def layer_gradient_inputs(call: OpCall) -> None:
    """``native_layer_norm_backward``, before its results: contiguous inputs."""
    call.alloc_contiguous(call.args[1], call.argument(5, "weight"), call.argument(6, "bias"))


def layer_gradients(call: OpCall) -> None:
    """``native_layer_norm_backward``: sums over many rows are made in two steps."""
    gradient, source, shape = call.args[:3]
    _, weight, bias = call.result
    _sum_gradients(call, gradient, source, shape, (weight, bias))


def rms_inputs(call: OpCall) -> None:
    """``_fused_rms_norm``, before its results: contiguous inputs."""
    call.alloc_contiguous(call.args[0], call.argument(2, "weight"))


def rms_gradient_inputs(call: OpCall) -> None:
    """``_fused_rms_norm_backward``, before its results: contiguous inputs."""
    call.alloc_contiguous(call.args[1], call.argument(4, "weight"))


def rms_gradients(call: OpCall) -> None:
    """``_fused_rms_norm_backward``: as layer norm's, without a bias."""
    gradient, source, shape = call.args[:3]
    _sum_gradients(call, gradient, source, shape, (call.result[1],))


@decision
def _is_narrow(gpu: GPU, columns: int) -> bool:
    """Whether blocks of threads for all columns leave most of the GPU idle."""
    return columns // _COLUMNS < gpu.multi_processor_count // 2


def _sum_gradients(
    call: OpCall,
    gradient: torch.Tensor,
    source: torch.Tensor,
    shape: list[int],
    weights: tuple[torch.Tensor | None, ...],
) -> None:
    columns = prod(shape)
    if not source.numel():
        return
    rows = source.numel() // columns
    call.alloc_contiguous(gradient)
    given = [weight for weight in weights if weight is not None and weight.numel()]
    if not given or rows <= _TALL or not _is_narrow(call.model, columns):
        return
    blocks = min(_MOST_BLOCKS // -(-columns // _COLUMNS), -(-rows // _COLUMNS))
    for weight in given:
        call.alloc_temp(blocks * weight.shape[-1] * weight.element_size())
    for weight in given:
        with call.scope():  # the sum takes the place of a weight's gradient made before
            call.alloc_temp(weight.shape[-1] * weight.element_size())
            stage_columns(call, blocks, weight.shape[-1], weight.dtype)


def group_inputs(call: OpCall) -> None:
    """``native_group_norm``, before its results: contiguous inputs."""
    if call.args[0].numel():
        call.alloc_contiguous(*call.args[:3])


def groups(call: OpCall) -> None:
    """``native_group_norm``: statistics in float, and a scale and a shift for each channel."""
    source: torch.Tensor = call.args[0]
    batch, channels, inner, count = call.args[3:7]
    if not batch:
        return
    width = _accumulated(source)
    if source.dtype in LOW_PRECISION:
        for _mean_and_deviation in range(2):
            call.alloc_temp(batch * count * width)
    weighted = any(weight is not None for weight in call.args[1:3])
    if inner != 1 and weighted:
        for _scale_and_shift in range(2):
            call.alloc_temp(batch * channels * width)


def group_gradient_inputs(call: OpCall) -> None:
    """``native_group_norm_backward``, before its results: contiguous inputs."""
    if call.args[1].numel():
        call.alloc_contiguous(*call.args[:5])


def group_gradients(call: OpCall) -> None:
    """``native_group_norm_backward``: sums for each channel, and coefficients for each group."""
    source, weight = call.args[1], call.args[4]
    batch, channels, inner, count, mask = call.args[5:10]
    width = _accumulated(source)
    if inner != 1:
        for _sums in range(2):
            call.alloc_temp(batch * channels * width)
    if mask[0]:
        with call.scope():
            for _coefficients in range(2):
                call.alloc_temp(batch * count * width)
            if weight is not None and inner != 1:
                call.alloc_temp(batch * channels * width)


def _accumulated(tensor: Any) -> int:
    return 4 if tensor.dtype in LOW_PRECISION else int(tensor.element_size())


_LAYER: Final = "aten/src/ATen/native/cuda/layer_norm_kernel.cu"
_GROUP: Final = "aten/src/ATen/native/cuda/group_norm_kernel.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::native_layer_norm": Entry(nothing, _LAYER, Basis.SOURCE, layer_inputs),
    "aten::native_layer_norm_backward": Entry(
        layer_gradients, _LAYER, Basis.SOURCE, layer_gradient_inputs
    ),
    "aten::_fused_rms_norm": Entry(nothing, _LAYER, Basis.SOURCE, rms_inputs),
    "aten::_fused_rms_norm_backward": Entry(
        rms_gradients, _LAYER, Basis.SOURCE, rms_gradient_inputs
    ),
    "aten::native_group_norm": Entry(groups, _GROUP, Basis.SOURCE, group_inputs),
    "aten::native_group_norm_backward": Entry(
        group_gradients, _GROUP, Basis.SOURCE, group_gradient_inputs
    ),
}
