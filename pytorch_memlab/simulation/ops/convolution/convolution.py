"""Convolutions: the strides of CUDA's outputs, contiguous copies, unfolded patches, workspaces.

Each plan of cuDNN has its own workspace. By default the first plan runs that its heuristics
name and that there is memory for; with ``torch.backends.cudnn.benchmark`` all plans are timed at
the first call of each shape, in one buffer of the largest workspace, and the cache is emptied
after it (``native/cudnn/Conv_v8.cpp``). None of it can be told without cuDNN: but for one kind of
convolutions (Note [Winograd workspace]) no bytes are counted, and the op is named among those that
take memory of unknown size.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch

from ..memory_formats import cudnn_conv_memory_format, suggest_memory_format
from ..op_call import OpCall
from ..reduction_workspace import alloc_sum_workspace
from ..registry import estimated
from .backends import Backend, Convolution, convolution_of
from .cudnn import CUDNN_WORKSPACES, alloc_copy_into, winograd_workspace

_SOURCE: Final = "aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp"
_ONE_SPATIAL: Final = 3

_aten: Final = torch.ops.aten
_Layout = torch.memory_format


def _reference(*args: Any) -> torch.Tensor:
    result: torch.Tensor = _aten.convolution.default(*args)
    return _laid_out(result, _result_layout(args))


def _meta(*args: Any) -> torch.Tensor:
    result = _aten.convolution.default(*args)
    return _empty(result, result.shape, _result_layout(args))


def _backward_reference(*args: Any) -> tuple[torch.Tensor | None, ...]:
    results = _aten.convolution_backward.default(*args)
    layouts = _gradient_layouts(args)
    return tuple(
        None if result is None or not wanted else _laid_out(result, layout)
        for result, wanted, layout in zip(results, args[10], layouts, strict=True)
    )


def _backward_meta(*args: Any) -> tuple[torch.Tensor | None, ...]:
    grad_output, tensor, weight, bias_sizes = args[:4]
    channels = list(bias_sizes or [grad_output.shape[1]])
    return tuple(
        _empty(tensor, size, layout) if wanted else None
        for size, wanted, layout in zip(
            (tensor.shape, weight.shape, channels), args[10], _gradient_layouts(args), strict=True
        )
    )


def _of_forward(args: tuple[Any, ...]) -> Convolution:
    """The convolution of a call of ``convolution``."""
    return convolution_of(*args[:2], *args[3:])


def _of_backward(args: tuple[Any, ...]) -> Convolution:
    """The convolution of a call of ``convolution_backward``."""
    return convolution_of(*args[1:3], *args[4:10])


def _result_layout(args: tuple[Any, ...]) -> _Layout:
    if args[1].dim() == 3:
        return torch.contiguous_format
    return _of_forward(args).layout


def _gradient_layouts(args: tuple[Any, ...]) -> tuple[_Layout, ...]:
    plain = torch.contiguous_format
    convolution = _of_backward(args)
    if args[2].dim() == 3 or convolution.backend() is not Backend.CUDNN:
        return plain, plain, plain
    layout = _gradient_layout(convolution, args[0], args[10][1])
    like = torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
    like = like.contiguous(memory_format=layout)
    grad_input = cudnn_conv_memory_format(like, convolution.weight)
    with_input = like
    if args[10][1]:
        with_input, layout = convolution.tensor, convolution.layout
        if not with_input.is_contiguous(memory_format=layout):
            with_input = _copied(with_input, layout)
    grad_weight = cudnn_conv_memory_format(with_input, like)
    return grad_input, grad_weight, plain


def _gradient_layout(
    convolution: Convolution, grad_output: torch.Tensor, wants_weight: bool
) -> _Layout:
    """The format in which cuDNN is given the gradient: that of the input."""
    layout = convolution.layout
    tensor = convolution.tensor
    if wants_weight and not tensor.is_contiguous(memory_format=layout):
        return layout
    return suggest_memory_format(tensor)


def _copied(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """A tensor without elements that has the strides of a copy."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=layout)


def _laid_out(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    strides = torch.empty(tensor.shape, device="meta", memory_format=layout).stride()
    if tensor.stride() == strides:
        return tensor
    return _empty(tensor, tensor.shape, layout).copy_(tensor)


def _empty(like: torch.Tensor, size: Any, layout: _Layout) -> torch.Tensor:
    strides = torch.empty(size, device="meta", memory_format=layout).stride()
    return like.new_empty_strided(tuple(size), strides)


@estimated("aten::convolution", source=_SOURCE, reference=_reference, meta=_meta)
def _memory(call: OpCall) -> None:
    """Contiguous copies come before the output, that of the weight after it with cuDNN."""
    convolution = _of_forward(call.args)
    tensor, weight = call.args[:2]
    backend = convolution.backend()
    if weight.dim() == _ONE_SPATIAL:
        call.alloc_contiguous(tensor)
    if backend is Backend.CUDNN:
        layout = convolution.layout
        alloc_copy_into(call, convolution.tensor, layout)
        call.alloc_outputs(call.result)
        with call.scope():
            alloc_copy_into(call, convolution.weight, layout)
            _alloc_workspace(call, convolution, gradient=False)
    elif backend is Backend.DEPTHWISE:
        call.alloc_contiguous(convolution.tensor, convolution.weight, call.args[2])
    elif backend is Backend.COLUMNS:
        call.alloc_contiguous(convolution.tensor, convolution.weight)
        _output_in_groups(call, convolution)


@estimated(
    "aten::convolution_backward", source=_SOURCE, reference=_backward_reference, meta=_backward_meta
)
def _backward_memory(call: OpCall) -> None:
    convolution = _of_backward(call.args)
    grad_output = call.args[0]
    if convolution.weight.dim() > call.args[2].dim():
        grad_output = grad_output.unsqueeze(2)
    backend = convolution.backend()
    with call.scope():
        if call.args[2].dim() == _ONE_SPATIAL:
            call.alloc_contiguous(call.args[1])
        if backend is Backend.CUDNN:
            _cudnn_gradients(call, convolution, grad_output)
        elif backend is Backend.DEPTHWISE:
            _depthwise_gradients(call, convolution, grad_output)
        elif backend is Backend.COLUMNS:
            call.alloc_contiguous(convolution.tensor, convolution.weight)
            _gradients_in_groups(call, convolution, grad_output)
    grad_bias = call.result[2]
    if grad_bias is not None:
        call.alloc_outputs(grad_bias)
        if backend in (Backend.CUDNN, Backend.DEPTHWISE):
            alloc_sum_workspace(call, grad_output, [0, *range(2, grad_output.dim())])


def _cudnn_gradients(call: OpCall, convolution: Convolution, grad_output: torch.Tensor) -> None:
    grad_input, grad_weight = call.result[:2]
    tensor, weight = convolution.tensor, convolution.weight
    if grad_weight is not None and not tensor.is_contiguous(memory_format=convolution.layout):
        call.alloc_copy(tensor)
        tensor = _copied(tensor, convolution.layout)
    layout = _gradient_layout(convolution, grad_output, grad_weight is not None)
    turns = (
        not grad_output.is_contiguous(memory_format=layout)
        if convolution.transposed
        else suggest_memory_format(grad_output) != layout
    )
    if turns:
        call.alloc_copy(grad_output)
        grad_output = _copied(grad_output, layout)
    if grad_input is not None:
        call.alloc_outputs(grad_input)
        wanted = cudnn_conv_memory_format(grad_output, weight)
        with call.scope():
            alloc_copy_into(call, weight, wanted)
            alloc_copy_into(call, grad_output, wanted)
            _alloc_workspace(call, convolution, gradient=True)
    if grad_weight is not None:
        call.unknown_workspace = CUDNN_WORKSPACES
        wanted = cudnn_conv_memory_format(tensor, grad_output)
        with call.scope():
            alloc_copy_into(call, grad_output, wanted)
            alloc_copy_into(call, tensor, wanted)
            call.alloc_outputs(grad_weight)


def _alloc_workspace(call: OpCall, convolution: Convolution, *, gradient: bool) -> None:
    nbytes = winograd_workspace(convolution, call.model, gradient=gradient)
    if nbytes is None:
        call.unknown_workspace = CUDNN_WORKSPACES
    else:
        call.alloc_temp(nbytes)


def _depthwise_gradients(call: OpCall, convolution: Convolution, grad_output: torch.Tensor) -> None:
    grad_input, grad_weight = call.result[:2]
    call.alloc_contiguous(grad_output)
    if grad_weight is not None:
        with call.scope():
            call.alloc_contiguous(convolution.tensor)
            call.alloc_outputs(grad_weight)
    if grad_input is not None:
        with call.scope():
            call.alloc_contiguous(convolution.weight)
            call.alloc_outputs(grad_input)


def _output_in_groups(call: OpCall, convolution: Convolution) -> None:
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


def _gradients_in_groups(call: OpCall, convolution: Convolution, grad_output: torch.Tensor) -> None:
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
                _copy_group(call, grad_output, groups)
                _copy_group(call, convolution.tensor, groups)
            else:
                call.alloc_contiguous(grad_output)
            if convolution.needs_columns():
                call.alloc_temp(_columns(convolution, grad_output))
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
