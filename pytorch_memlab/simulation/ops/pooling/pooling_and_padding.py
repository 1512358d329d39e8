"""Pooling, padding, folding, resampling: copies of inputs that do not lie in their own format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch._prims_common import suggest_memory_format

from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..op_call import OpCall

    Take = Callable[[OpCall], None]


def formatted(*positions: int) -> Take:
    """Inputs are made contiguous in the memory format of the op's input, channels last or first."""

    def take(call: OpCall) -> None:
        wanted = suggest_memory_format(call.args[positions[-1]])
        for position in positions:
            tensor: torch.Tensor = call.args[position]
            fits = tensor.dim() == call.args[positions[-1]].dim()
            if not tensor.is_contiguous(memory_format=wanted if fits else torch.contiguous_format):
                call.alloc_copy(tensor)

    return take


def plain(*positions: int) -> Take:
    """Inputs are made contiguous."""
    return lambda call: call.alloc_contiguous(*(call.args[position] for position in positions))


_CUDA: Final = "aten/src/ATen/native/cuda/"

ENTRIES: Final[Mapping[str, Entry]] = {
    **{
        f"aten::{name}{suffix}": Entry(take, _CUDA + source, Basis.SOURCE)
        for source, forward, backward, names in (
            ("DilatedMaxPool2d.cu", formatted(0), formatted(0, 1), ("max_pool2d_with_indices",)),
            ("DilatedMaxPool3d.cu", formatted(0), formatted(0, 1), ("max_pool3d_with_indices",)),
            ("AveragePool2d.cu", formatted(0), formatted(0, 1), ("avg_pool2d",)),
            (
                "AdaptiveAveragePooling.cu",
                formatted(0),
                formatted(0, 1),
                ("_adaptive_avg_pool2d",),
            ),
            (
                "ReflectionPad.cu",
                plain(0),
                plain(0),
                ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
            ),
            (
                "ReplicationPadding.cu",
                plain(0),
                plain(0),
                ("replication_pad1d", "replication_pad2d", "replication_pad3d"),
            ),
        )
        for suffix, take in (("", forward), ("_backward", backward))
        for name in names
    },
    "aten::im2col": Entry(plain(0), _CUDA + "Im2Col.cu", Basis.SOURCE),
    "aten::col2im": Entry(plain(0), _CUDA + "Col2Im.cu", Basis.SOURCE),
}
