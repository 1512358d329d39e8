"""Pooling whose kernels read and write rows: contiguous copies of what does not lie so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing
from .pooling_and_padding import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from ..op_call import OpCall

    Take = Callable[[OpCall], None]

_BATCHED_VOLUMES: Final = 5
_BATCHED_IMAGES: Final = 4


def if_batched(call: OpCall) -> None:
    """Pools of volumes: a batch is made contiguous, a single volume is read by its strides."""
    if call.args[0].dim() == _BATCHED_VOLUMES:
        call.alloc_contiguous(call.args[0])


def largest_of_images(call: OpCall) -> None:
    """``adaptive_max_pool2d``: rows of results that lie channels last, and a contiguous batch."""
    source: torch.Tensor = call.args[0]
    if source.numel():
        call.alloc_contiguous(*call.result)
        if source.dim() == _BATCHED_IMAGES:
            call.alloc_contiguous(source)


def gradient_of_largest(call: OpCall) -> None:
    """``adaptive_max_pool2d_backward``: contiguous inputs, and rows of its result."""
    gradient, _, indices = call.args[:3]
    if gradient.numel():
        call.alloc_contiguous(gradient, indices, call.result)


_CUDA: Final = "aten/src/ATen/native/cuda/"
_LARGEST_2D: Final = _CUDA + "AdaptiveMaxPooling2d.cu"
_LARGEST_3D: Final = _CUDA + "AdaptiveMaxPooling3d.cu"
_AVERAGE_3D: Final = _CUDA + "AveragePool3d.cu"
_ADAPTIVE_3D: Final = _CUDA + "AdaptiveAveragePooling3d.cu"
_UNPOOLED: Final = _CUDA + "MaxUnpooling.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::adaptive_max_pool2d": Entry(largest_of_images, _LARGEST_2D, Basis.SOURCE),
    "aten::adaptive_max_pool2d_backward": Entry(gradient_of_largest, _LARGEST_2D, Basis.SOURCE),
    "aten::adaptive_max_pool3d": Entry(if_batched, _LARGEST_3D, Basis.SOURCE),
    "aten::adaptive_max_pool3d_backward": Entry(plain(0), _LARGEST_3D, Basis.SOURCE),
    "aten::avg_pool3d": Entry(plain(0), _AVERAGE_3D, Basis.SOURCE),
    "aten::avg_pool3d_backward": Entry(plain(0), _AVERAGE_3D, Basis.SOURCE),
    "aten::_adaptive_avg_pool3d": Entry(nothing, _ADAPTIVE_3D, Basis.SOURCE, if_batched),
    "aten::_adaptive_avg_pool3d_backward": Entry(plain(0), _ADAPTIVE_3D, Basis.SOURCE),
    "aten::max_unpool2d": Entry(nothing, _UNPOOLED, Basis.SOURCE, plain(0, 1)),
    "aten::max_unpool3d": Entry(nothing, _UNPOOLED, Basis.SOURCE, plain(0, 1)),
}
