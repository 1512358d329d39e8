"""Quantization: copies of what lies in no format, and the extremes of zero points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing
from ..pooling.pooling_and_padding import formatted
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall


def check_zero_points(call: OpCall) -> None:
    """``fake_quantize_per_channel_affine_cachemask``, before its results: two extremes.

    The host reads them to check them.
    """
    zero_point: torch.Tensor = call.args[2]
    if zero_point.is_floating_point():
        return
    with call.scope():
        for _smallest_and_largest in range(2):
            call.alloc_temp(zero_point.element_size())
            stage_values(call, zero_point)


_QUANTIZER: Final = "aten/src/ATen/quantized/Quantizer.cpp"
_CHANNELS: Final = "aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::quantize_per_tensor": Entry(formatted(0), _QUANTIZER, Basis.SOURCE),
    "aten::dequantize.self": Entry(formatted(0), _QUANTIZER, Basis.SOURCE),
    "aten::fake_quantize_per_channel_affine_cachemask": Entry(
        nothing, _CHANNELS, Basis.SOURCE, check_zero_points
    ),
}
