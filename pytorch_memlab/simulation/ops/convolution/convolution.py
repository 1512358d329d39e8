"""Convolutions: the strides of CUDA's outputs, contiguous copies, unfolded patches, workspaces.

Each plan of cuDNN has its own workspace. By default the first plan runs that its heuristics
name and that there is memory for; with ``torch.backends.cudnn.benchmark`` all plans are timed at
the first call of each shape, in one buffer of the largest workspace, and the cache is emptied
after it (``native/cudnn/Conv_v8.cpp``). None of it can be told without cuDNN: but for one kind of
convolutions (Note [Winograd workspace]) no bytes are counted, and the op is named among those that
take memory of unknown size, with a bound (Note [Bounds of cuDNN's workspaces]).
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch

from ...hardware.gpu import GPU
from ..core.memory_formats import cudnn_conv_memory_format, suggest_memory_format
from ..core.op_call import CUDNN_WORKSPACES, FLOAT, OpCall
from ..core.reduction_workspace import alloc_sum_workspace
from ..core.registry import estimated
from .conv_backend import Convolution, ConvolutionBackend, convolution_of
from .workspace_bounds import workspace_bound

_SOURCE: Final = "aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp"
_ONE_SPATIAL: Final = 3

_aten: Final = torch.ops.aten
_Layout = torch.memory_format


def _forward(*args: Any) -> torch.Tensor:
    is_plain = args[1].dim() == _ONE_SPATIAL
    layout = torch.contiguous_format if is_plain else _of_forward(args).layout
    return _laid_out(_aten.convolution.default(*args), layout)


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
    return convolution_of(*args[:2], *args[3:])


def _of_backward(args: tuple[Any, ...]) -> Convolution:
    return convolution_of(*args[1:3], *args[4:10])


def _gradient_layouts(args: tuple[Any, ...]) -> tuple[_Layout, ...]:
    plain = torch.contiguous_format
    convolution = _of_backward(args)
    if args[2].dim() == 3 or convolution.backend() is not ConvolutionBackend.CUDNN:
        return plain, plain, plain
    tensor, grad_output = _operands(convolution, args[0], wants_weight=args[10][1])
    grad_input = cudnn_conv_memory_format(grad_output, convolution.weight)
    return grad_input, cudnn_conv_memory_format(tensor, grad_output), plain


def _operands(
    convolution: Convolution, grad_output: torch.Tensor, *, wants_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and gradient as cuDNN is given them, copies where they have to be made contiguous."""
    tensor = convolution.tensor
    if wants_weight and not tensor.is_contiguous(memory_format=convolution.layout):
        tensor = _copied(tensor, convolution.layout)
    layout = suggest_memory_format(tensor)
    turns = (
        not grad_output.is_contiguous(memory_format=layout)
        if convolution.transposed
        else suggest_memory_format(grad_output) != layout
    )
    return tensor, _copied(grad_output, layout) if turns else grad_output


def _copied(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """A tensor without elements that has the strides of a copy."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=layout)


def _laid_out(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    empty = _empty(tensor, tensor.shape, layout)
    return tensor if tensor.stride() == empty.stride() else empty.copy_(tensor)


def _empty(like: torch.Tensor, size: Any, layout: _Layout) -> torch.Tensor:
    strides = torch.empty(size, device="meta", memory_format=layout).stride()
    return like.new_empty_strided(tuple(size), strides)


@estimated("aten::convolution", source=_SOURCE, values=_forward)
def _memory(call: OpCall) -> None:
    """Contiguous copies come before the output, that of the weight after it with cuDNN."""
    convolution = _of_forward(call.args)
    tensor, weight = call.args[:2]
    backend = convolution.backend()
    if weight.dim() == _ONE_SPATIAL:
        call.alloc_contiguous(tensor)
    if backend is ConvolutionBackend.CUDNN:
        if tensor.dtype is torch.int64:  # the only integers that the CPU convolves
            raise RuntimeError("getCudnnDataTypeFromScalarType() not supported for Long")
        layout = convolution.layout
        call.alloc_contiguous(convolution.tensor, memory_format=layout)
        call.alloc_outputs(call.result)
        with call.scope():
            call.alloc_contiguous(convolution.weight, memory_format=layout)
            if not _is_plain_product(convolution):
                _alloc_workspace(call, convolution, call.result, gradient=False)
    elif backend is ConvolutionBackend.DEPTHWISE:
        call.alloc_contiguous(convolution.tensor, convolution.weight, call.args[2])
    elif backend is ConvolutionBackend.COLUMNS:
        call.alloc_contiguous(convolution.tensor, convolution.weight)
        inputs = [convolution.tensor] if convolution.groups > 1 else []
        columns = _columns(convolution, call.result)
        _alloc_in_groups(call, convolution, [call.result], inputs, columns)


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
        if backend is ConvolutionBackend.CUDNN:
            _cudnn_gradients(call, convolution, grad_output)
        elif backend is ConvolutionBackend.DEPTHWISE:
            _depthwise_gradients(call, convolution, grad_output)
        elif backend is ConvolutionBackend.COLUMNS:
            call.alloc_contiguous(convolution.tensor, convolution.weight)
            wanted = [result for result in call.result if result is not None]
            inputs = [grad_output, *([convolution.tensor] if convolution.groups > 1 else [])]
            columns = _columns(convolution, grad_output)
            _alloc_in_groups(call, convolution, wanted, inputs, columns)
    grad_bias = call.result[2]
    if grad_bias is not None:
        call.alloc_outputs(grad_bias)
        if backend in (ConvolutionBackend.CUDNN, ConvolutionBackend.DEPTHWISE):
            alloc_sum_workspace(call, grad_output, [0, *range(2, grad_output.dim())])


def _cudnn_gradients(call: OpCall, convolution: Convolution, grad_output: torch.Tensor) -> None:
    grad_input, grad_weight = call.result[:2]
    weight = convolution.weight
    operands = _operands(convolution, grad_output, wants_weight=grad_weight is not None)
    for operand, passed in zip(operands, (convolution.tensor, grad_output), strict=True):
        if operand is not passed:
            call.alloc_copy(operand)
    tensor, grad_output = operands
    if grad_input is not None:
        call.alloc_outputs(grad_input)
        wanted = cudnn_conv_memory_format(grad_output, weight)
        with call.scope():
            call.alloc_contiguous(weight, memory_format=wanted)
            call.alloc_contiguous(grad_output, memory_format=wanted)
            _alloc_workspace(call, convolution, grad_output, gradient=True)
    if grad_weight is not None:
        wanted = cudnn_conv_memory_format(tensor, grad_output)
        with call.scope():
            call.alloc_contiguous(grad_output, memory_format=wanted)
            call.alloc_contiguous(tensor, memory_format=wanted)
            call.alloc_outputs(grad_weight)
            _leave_out_workspace(call, convolution, grad_output)


# Note [Winograd workspace]
# A recording of a small convolutional network (PyTorch 2.2, cuDNN 8, a GPU of compute capability
# 7.5) shows the workspaces of three convolutions and of their three gradients of the input. The
# formula gives all six: filter tiles of Winograd's F(2x2, 3x3), a copy of the filter, and a
# vector. That cuDNN takes the same engine elsewhere is an assumption: an estimate.

_FIRST_WITH_TF32: Final = 8
"""Major compute capability from which cuDNN may round float32, and takes other engines."""

_TAPS: Final = 9
_TILE: Final = 16
"""Elements of a filter of 3 by 3 once it is transformed."""


def _winograd_workspace(convolution: Convolution, gpu: GPU, *, gradient: bool) -> int | None:
    """Bytes of the workspace, None where nothing is known of it. See Note [Winograd workspace]."""
    tensor, weight = convolution.tensor, convolution.weight
    is_recorded = (
        gpu.major < _FIRST_WITH_TF32
        and not torch.backends.cudnn.benchmark
        and not torch.backends.cudnn.deterministic
        and not torch.are_deterministic_algorithms_enabled()
        and tensor.dtype == weight.dtype == torch.float32
        and weight.shape[2:] == (3, 3)
        and tensor.shape[0] == 1
        and convolution.layout == torch.contiguous_format
        and not convolution.transposed
        and convolution.groups == 1
        and set(convolution.stride) == set(convolution.dilation) == {1}
    )
    if not is_recorded:
        return None
    made, read = weight.shape[:2]
    if gradient:
        made, read = read, made
    tiles = _TILE * _up(read, 4) * _up(made, 32)
    return FLOAT * (tiles + _TAPS * read * made + made)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _is_plain_product(convolution: Convolution) -> bool:
    """True for the product of pixels and a matrix, which takes no workspace."""
    # A recording of a network of 1x1 convolutions shows it for single precision, forward
    # (https://github.com/octree-nca/octree-nca-groupeq, commit 3e8aa21).
    return (
        convolution.tensor.dtype == torch.float32
        and not torch.backends.cudnn.benchmark
        and convolution.groups == 1
        and not convolution.transposed
        and not any(convolution.padding)
        and {*convolution.weight.shape[2:], *convolution.stride} == {1}
    )


def _alloc_workspace(
    call: OpCall, convolution: Convolution, result: torch.Tensor, *, gradient: bool
) -> None:
    nbytes = _winograd_workspace(convolution, call.model, gradient=gradient)
    if nbytes is None:
        _leave_out_workspace(call, convolution, result)
    else:
        call.alloc_temp(nbytes)


def _leave_out_workspace(call: OpCall, convolution: Convolution, result: torch.Tensor) -> None:
    if result.dim() < convolution.tensor.dim():
        result = result.unsqueeze(2)
    most = workspace_bound(convolution, result)
    call.leave_out(CUDNN_WORKSPACES, most, gives_way=True)


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


def _alloc_in_groups(
    call: OpCall,
    convolution: Convolution,
    results: list[torch.Tensor],
    inputs: list[torch.Tensor],
    columns: int,
) -> None:
    """Each group's results and what it reads and unfolds, then all results side by side."""
    groups = convolution.groups
    if groups == 1:
        call.alloc_outputs(*results)
    for _group in range(groups):
        if groups > 1:
            call.alloc_temps(
                [result.numel() // groups * result.element_size() for result in results]
            )
        with call.scope():
            for tensor in inputs:
                if groups == 1:
                    call.alloc_contiguous(tensor)
                elif tensor.shape[0] > 1:  # a group of channels of one sample is contiguous
                    call.alloc_temp(tensor.numel() // groups * tensor.element_size())
            if convolution.needs_columns():
                call.alloc_temp(columns)
            call.ensure_cublas_workspace()
    call.alloc_outputs(*results)


def _columns(convolution: Convolution, result: torch.Tensor) -> int:
    tensor, weight = convolution.tensor, convolution.weight
    places = tensor if convolution.transposed else result
    elements: int = prod((*weight.shape[1:], *places.shape[2:]))
    return elements * tensor.element_size()
