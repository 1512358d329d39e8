"""Convolutions: the host computes them, with the strides that CUDA's results have.

``aten/src/ATen/native/Convolution.cpp`` and ``native/cudnn/ConvShared.cpp``.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..memory_formats import cudnn_conv_memory_format, suggest_memory_format
from .backends import Backend, Convolution, convolution_of

_aten: Final = torch.ops.aten
_Layout = torch.memory_format


def forward(*args: Any) -> torch.Tensor:
    """``convolution`` computed on the host."""
    result: torch.Tensor = _aten.convolution.default(*args)
    return _laid_out(result, _result_layout(args))


def forward_shape(*args: Any) -> torch.Tensor:
    """Shape of what ``forward`` returns."""
    result = _aten.convolution.default(*args)
    return _empty(result, result.shape, _result_layout(args))


def backward(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """``convolution_backward`` computed on the host."""
    results = _aten.convolution_backward.default(*args)
    layouts = _gradient_layouts(args)
    return tuple(
        None if result is None or not wanted else _laid_out(result, layout)
        for result, wanted, layout in zip(results, args[10], layouts, strict=True)
    )


def backward_shapes(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """Shapes of what ``backward`` returns."""
    gradient, tensor, weight, bias_sizes = args[:4]
    channels = list(bias_sizes or [gradient.shape[1]])
    return tuple(
        _empty(tensor, size, layout) if wanted else None
        for size, wanted, layout in zip(
            (tensor.shape, weight.shape, channels), args[10], _gradient_layouts(args), strict=True
        )
    )


def of_forward(args: tuple[Any, ...]) -> Convolution:
    """What a call of ``convolution`` convolves."""
    return convolution_of(*args[:2], *args[3:])


def of_backward(args: tuple[Any, ...]) -> Convolution:
    """What a call of ``convolution_backward`` convolved."""
    return convolution_of(*args[1:3], *args[4:10])


def _result_layout(args: tuple[Any, ...]) -> _Layout:
    if args[1].dim() == 3:
        return torch.contiguous_format
    return of_forward(args).layout


def _gradient_layouts(args: tuple[Any, ...]) -> tuple[_Layout, ...]:
    plain = torch.contiguous_format
    convolution = of_backward(args)
    if args[2].dim() == 3 or convolution.backend() is not Backend.CUDNN:
        return plain, plain, plain
    layout = gradient_layout(convolution, args[0], args[10][1])
    like = torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
    like = like.contiguous(memory_format=layout)
    of_input = cudnn_conv_memory_format(like, convolution.weight)
    with_input = like if not args[10][1] else _shaped(convolution.tensor, convolution.layout)
    of_weight = cudnn_conv_memory_format(with_input, like)
    return of_input, of_weight, plain


def gradient_layout(
    convolution: Convolution, gradient: torch.Tensor, wants_weight: bool
) -> _Layout:
    """The format in which cuDNN is given the gradient: that of the input."""
    layout = convolution.layout
    tensor = convolution.tensor
    if wants_weight and not tensor.is_contiguous(memory_format=layout):
        return layout
    return suggest_memory_format(tensor)


def _shaped(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    if tensor.is_contiguous(memory_format=layout):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=layout)


def _laid_out(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    strides = torch.empty(tensor.shape, device="meta", memory_format=layout).stride()
    if tensor.stride() == strides:
        return tensor
    return _empty(tensor, tensor.shape, layout).copy_(tensor)


def _empty(like: torch.Tensor, size: Any, layout: _Layout) -> torch.Tensor:
    strides = torch.empty(size, device="meta", memory_format=layout).stride()
    return like.new_empty_strided(tuple(size), strides)
