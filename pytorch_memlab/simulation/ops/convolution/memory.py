"""Convolutions: contiguous copies, unfolded patches, and cuDNN's workspaces, which nobody knows.

Each plan of cuDNN has a workspace of its own. By default the first plan runs that its heuristics
name and that there is memory for; with ``torch.backends.cudnn.benchmark`` all plans are timed at
the first call of each shape, in one buffer of the largest workspace, and the cache is emptied
after it (``native/cudnn/Conv_v8.cpp``). None of it can be told without cuDNN: but for
one kind of convolutions (``cudnn_winograd.py``) no bytes are counted, and the op is named among
those that take memory of unknown size.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import cudnn_conv_memory_format, suggest_memory_format
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_sum
from .backends import Backend, Convolution
from .convolution import gradient_layout, of_backward, of_forward
from .cudnn_memory import CUDNN_WORKSPACES, copy_into
from .winograd import winograd_workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_ONE_SPATIAL: Final = 3


def forward(call: OpCall) -> None:
    """``convolution``: contiguous copies before the result, the weight's after it with cuDNN."""
    convolution = of_forward(call.args)
    tensor, weight = call.args[:2]
    backend = convolution.backend()
    if weight.dim() == _ONE_SPATIAL:
        call.alloc_contiguous(tensor)
    if backend is Backend.CUDNN:
        layout = convolution.layout
        copy_into(call, convolution.tensor, layout)
        call.alloc_outputs(call.result)
        with call.scope():
            copy_into(call, convolution.weight, layout)
            _take_workspace(call, convolution, gradient=False)
    elif backend is Backend.DEPTHWISE:
        call.alloc_contiguous(convolution.tensor, convolution.weight, call.args[2])
    elif backend is Backend.COLUMNS:
        call.alloc_contiguous(convolution.tensor, convolution.weight)
        _in_groups(call, convolution)


def backward(call: OpCall) -> None:
    """``convolution_backward``: gradients of the input, then of the weight, then of the bias."""
    convolution = of_backward(call.args)
    gradient = call.args[0]
    if convolution.weight.dim() > call.args[2].dim():
        gradient = gradient.unsqueeze(2)
    backend = convolution.backend()
    with call.scope():
        if call.args[2].dim() == _ONE_SPATIAL:
            call.alloc_contiguous(call.args[1])
        if backend is Backend.CUDNN:
            _gradients_of_cudnn(call, convolution, gradient)
        elif backend is Backend.DEPTHWISE:
            _gradients_of_channels(call, convolution, gradient)
        elif backend is Backend.COLUMNS:
            call.alloc_contiguous(convolution.tensor, convolution.weight)
            _gradients_in_groups(call, convolution, gradient)
    of_bias = call.result[2]
    if of_bias is not None:
        call.alloc_outputs(of_bias)
        if backend in (Backend.CUDNN, Backend.DEPTHWISE):
            stage_sum(call, gradient, [0, *range(2, gradient.dim())])


def _gradients_of_cudnn(call: OpCall, convolution: Convolution, gradient: torch.Tensor) -> None:
    of_input, of_weight = call.result[:2]
    tensor, weight = convolution.tensor, convolution.weight
    if of_weight is not None and not tensor.is_contiguous(memory_format=convolution.layout):
        call.alloc_copy(tensor)
        tensor = _as(tensor, convolution.layout)
    layout = gradient_layout(convolution, gradient, of_weight is not None)
    turns = (
        not gradient.is_contiguous(memory_format=layout)
        if convolution.transposed
        else suggest_memory_format(gradient) != layout
    )
    if turns:
        call.alloc_copy(gradient)
        gradient = _as(gradient, layout)
    if of_input is not None:
        call.alloc_outputs(of_input)
        wanted = cudnn_conv_memory_format(gradient, weight)
        with call.scope():
            copy_into(call, weight, wanted)
            copy_into(call, gradient, wanted)
            _take_workspace(call, convolution, gradient=True)
    if of_weight is not None:
        call.unknown_workspace = CUDNN_WORKSPACES
        wanted = cudnn_conv_memory_format(tensor, gradient)
        with call.scope():
            copy_into(call, gradient, wanted)
            copy_into(call, tensor, wanted)
            call.alloc_outputs(of_weight)


def _take_workspace(call: OpCall, convolution: Convolution, *, gradient: bool) -> None:
    nbytes = winograd_workspace(convolution, call.model, gradient=gradient)
    if nbytes is None:
        call.unknown_workspace = CUDNN_WORKSPACES
    else:
        call.alloc_temp(nbytes)


def _gradients_of_channels(call: OpCall, convolution: Convolution, gradient: torch.Tensor) -> None:
    of_input, of_weight = call.result[:2]
    call.alloc_contiguous(gradient)
    if of_weight is not None:
        with call.scope():
            call.alloc_contiguous(convolution.tensor)
            call.alloc_outputs(of_weight)
    if of_input is not None:
        with call.scope():
            call.alloc_contiguous(convolution.weight)
            call.alloc_outputs(of_input)


def _in_groups(call: OpCall, convolution: Convolution) -> None:
    """Each group's result, then all of them side by side."""
    groups = convolution.groups
    result = call.result
    if groups == 1:
        call.alloc_outputs(result)
    for _group in range(groups):
        if groups > 1:
            call.alloc_temp(result.numel() // groups * result.element_size())
        with call.scope():
            if groups > 1:
                _copy_group(call, convolution.tensor, groups)
            if convolution.needs_columns():
                call.alloc_temp(_columns(convolution, result))
            call.ensure_cublas_workspace()


def _gradients_in_groups(call: OpCall, convolution: Convolution, gradient: torch.Tensor) -> None:
    groups = convolution.groups
    wanted = [result for result in call.result if result is not None]
    if groups == 1:
        call.alloc_outputs(*wanted)
    for _group in range(groups):
        if groups > 1:
            for result in wanted:
                call.alloc_temp(result.numel() // groups * result.element_size())
        with call.scope():
            if groups > 1:
                _copy_group(call, gradient, groups)
                _copy_group(call, convolution.tensor, groups)
            else:
                call.alloc_contiguous(gradient)
            if convolution.needs_columns():
                call.alloc_temp(_columns(convolution, gradient))
            call.ensure_cublas_workspace()
    call.alloc_outputs(*wanted)


def _copy_group(call: OpCall, tensor: torch.Tensor, groups: int) -> None:
    """A group of channels is contiguous without a copy if there is one sample only."""
    if tensor.shape[0] > 1:
        call.alloc_temp(tensor.numel() // groups * tensor.element_size())


def _columns(convolution: Convolution, result: torch.Tensor) -> int:
    """Bytes of one sample's unfolded patches."""
    tensor, weight = convolution.tensor, convolution.weight
    taps = prod(weight.shape[2:])
    if convolution.transposed:
        return weight.shape[1] * taps * prod(tensor.shape[2:]) * tensor.element_size()
    return weight.shape[1] * taps * prod(result.shape[2:]) * tensor.element_size()


def _as(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """A tensor with the strides of a copy."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=layout)


_SOURCE: Final = "aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::convolution": Entry(nothing, _SOURCE, Basis.ESTIMATE, make=forward),
    "aten::convolution_backward": Entry(nothing, _SOURCE, Basis.ESTIMATE, make=backward),
}
