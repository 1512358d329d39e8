"""Softmax: contiguous copies, and the product that a softmax's gradient is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch._prims_common import compute_elementwise_output_strides, make_contiguous_strides_for

from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch


def forward(launch: Launch) -> None:
    """``_softmax`` and ``_log_softmax``: a contiguous input."""
    launch.contiguous(launch.args[0])


def gradient(launch: Launch) -> None:
    """``_softmax_backward_data``: the gradient times the result, contiguous copies of both."""
    gradient, output = launch.args[:2]
    launch.copy(gradient)
    if gradient.is_contiguous() and output.is_contiguous():
        return
    strides = compute_elementwise_output_strides(gradient, output)
    if strides != make_contiguous_strides_for(gradient.shape):
        launch.copy(gradient)
    launch.contiguous(output)


def log_gradient(launch: Launch) -> None:
    """``_log_softmax_backward_data``: contiguous inputs."""
    launch.contiguous(*launch.args[:2])


def safe_inputs(launch: Launch) -> None:
    """``_safe_softmax``, before its result: a softmax, and which rows are all minus infinity."""
    source: torch.Tensor = launch.args[0]
    dim = launch.argument(1, "dim")
    dtype = launch.argument(2, "dtype") or source.dtype
    if dtype != source.dtype:
        launch.borrow(source.numel() * dtype.itemsize)
    launch.borrow(source.numel() * dtype.itemsize)
    launch.borrow(source.numel())
    launch.borrow(source.numel() // max(1, source.shape[dim]))
    stage_values(launch, source, dim, torch.bool)
    launch.borrow(dtype.itemsize)


_SOFTMAX: Final = "aten/src/ATen/native/cuda/SoftMax.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_safe_softmax": Entry(
        nothing, "aten/src/ATen/native/SoftMax.cpp", Basis.SOURCE, safe_inputs
    ),
    "aten::_softmax": Entry(forward, _SOFTMAX, Basis.SOURCE),
    "aten::_log_softmax": Entry(forward, _SOFTMAX, Basis.SOURCE),
    "aten::_softmax_backward_data": Entry(gradient, _SOFTMAX, Basis.SOURCE),
    "aten::_log_softmax_backward_data": Entry(log_gradient, _SOFTMAX, Basis.SOURCE),
}
