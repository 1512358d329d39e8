"""Quantization: copies of what lies in no format, and the extremes of zero points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..pooling.pooling import formatted_inputs
from ..reduction_workspace import alloc_extremes_workspace
from ..registry import define, op

if TYPE_CHECKING:
    from ..op_call import OpCall


def _meta(tensor: torch.Tensor, *_others: object) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch has no meta kernel: a rounded tensor, and a mask of what was not clamped."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


op(
    "aten::quantize_per_tensor",
    "aten::dequantize.self",
    source="aten/src/ATen/quantized/Quantizer.cpp",
)(formatted_inputs(0))

define(
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    meta=_meta,
)


@op(
    "aten::fake_quantize_per_channel_affine_cachemask",
    source="aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp",
    meta=_meta,
)
def _check_zero_points(call: OpCall) -> None:
    """The CPU reads the smallest and the largest zero point, to check them."""
    zero_point: torch.Tensor = call.args[2]
    if zero_point.is_floating_point():
        return
    with call.scope():
        for _smallest_and_largest in range(2):
            call.alloc_temp(zero_point.element_size())
            alloc_extremes_workspace(call, zero_point)
