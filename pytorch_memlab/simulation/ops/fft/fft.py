"""Fourier transforms: the copies that cuFFT needs, and its work area, which only cuFFT knows.

cuFFT transforms up to three dimensions at once, of a batch that is one dimension. Its plan says
how much memory it works in (``native/cuda/CuFFTPlanCache.h``): no bytes are counted for that, and
the op is named among those that take memory of unknown size. Windows are made of several tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import torch

from ..memory_formats import can_view, on_meta
from ..op_call import OpCall
from ..registry import as_on_cpu, define, estimated

_SOURCE: Final = "aten/src/ATen/native/cuda/SpectralOps.cpp, CuFFTPlanCache.h"

_MOST_DIMS: Final = 3
"""Dimensions that one plan transforms at most."""

_HALVES: Final = (torch.float16, torch.complex32)


@estimated("aten::_fft_r2c", source=_SOURCE)
def _fft_r2c(call: OpCall) -> None:
    """A copy of what is not aligned as complex numbers are; stages if many."""
    call.alloc_outputs()
    source, dims, _, onesided = call.args[:4]
    if not source.numel():
        return
    last = dims[-1]
    half = list(source.shape)
    half[last] = half[last] // 2 + 1
    sizes = half if onesided or call.kwargs.get("out") is not None else list(source.shape)
    complex_size = 2 * source.element_size()
    _alloc_output_aside(call, sizes, complex_size)
    signal = on_meta(source)
    copy = None
    if source.storage_offset() * source.element_size() % complex_size:
        copy = call.alloc_copy(source)
        signal = signal.movedim(last, -1).contiguous().movedim(-1, last)
    complex_dtype = source.dtype.to_complex()
    if _is_one_plan(dims):
        _transform(call, signal, sizes, dims, complex_dtype)
        return
    signal = _transform(call, signal, half, dims[-1:], complex_dtype)
    call.alloc_temp(prod(sizes) * complex_size)
    if copy is not None:
        call.free_temp(copy)
    _transform_in_stages(call, signal, dims[:-1])


@estimated("aten::_fft_c2r", source=_SOURCE)
def _fft_c2r(call: OpCall) -> None:
    """A copy of its input, which cuFFT may write over."""
    call.alloc_outputs()
    source, dims, _, length = call.args[:4]
    if not source.numel():
        return
    sizes = list(source.shape)
    sizes[dims[-1]] = length
    _alloc_output_aside(call, sizes, source.element_size() // 2)
    call.alloc_copy(source)
    of_real = source.dtype.to_real()
    if _is_one_plan(dims):
        _transform(call, on_meta(source).contiguous(), sizes, dims, of_real)
        return
    with call.scope():
        signal = _transform_in_stages(call, on_meta(source), dims[:-1], allocates=True)
    _transform(call, signal, sizes, dims[-1:], of_real)


@estimated("aten::_fft_c2c", source=_SOURCE)
def _fft_c2c(call: OpCall) -> None:
    """A second result where one plan does not transform all dimensions."""
    call.alloc_outputs()
    source, dims = call.args[:2]
    if source.numel() and dims:
        _alloc_output_aside(call, list(source.shape), source.element_size())
        _transform_in_stages(call, on_meta(source), dims, allocates=True)


def _transform_in_stages(
    call: OpCall, signal: torch.Tensor, dims: Sequence[int], *, allocates: bool = False
) -> torch.Tensor:
    """Transform complex numbers, from one of two tensors to the other, of which one is there."""
    while dims:
        ordered = sorted(dims, key=signal.stride, reverse=True)  # those that lie closest first
        dims, now = ordered[:-_MOST_DIMS], ordered[-_MOST_DIMS:]
        signal = _transform(call, signal, list(signal.shape), now, signal.dtype)
        if dims and allocates:
            call.alloc_copy(signal)
            allocates = False
    return signal


def _transform(
    call: OpCall,
    signal: torch.Tensor,
    sizes: Sequence[int],
    dims: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run one plan: what its strides cannot tell is copied, its work area is not known."""
    batch = [dim for dim in range(signal.dim()) if dim not in dims]
    batch.sort(key=signal.stride, reverse=True)
    order = [*batch, *dims]
    permuted = signal.permute(order)
    shape = [-1, *permuted.shape[len(batch) :]]
    call.unknown_workspace = "cuFFT work areas"
    with call.scope():
        if not can_view(permuted, shape):
            call.alloc_copy(signal)
        collapsed = permuted.reshape(shape)
        if _must_be_cloned(collapsed, [sizes[dim] for dim in dims]):
            call.alloc_copy(signal)
    laid_out = torch.empty([sizes[dim] for dim in order], dtype=dtype, device="meta")
    return laid_out.permute([order.index(dim) for dim in range(len(order))])


def _must_be_cloned(signal: torch.Tensor, sizes: Sequence[int]) -> bool:
    """True if an input's strides are no embedding in a larger array, as cuFFT wants them."""
    strides = signal.stride()
    last = strides[-1]
    if last <= 0 or (signal.dtype in _HALVES and last != 1):
        return True
    if signal.shape[0] != 1 and not strides[0]:
        return True
    for own, other, stride in reversed(
        list(zip(signal.shape[1:-1], sizes[:-1], strides[1:-1], strict=True))
    ):
        if max(own, other) == 1:
            continue
        if stride <= 0 or stride % last:
            return True
        last = stride
    return False


def _is_one_plan(dims: Sequence[int]) -> bool:
    """True if a transform from or to real numbers is one plan, which is slow for some dims."""
    return len(dims) <= _MOST_DIMS and list(dims[:2]) != [0, 1]


def _alloc_output_aside(call: OpCall, sizes: Sequence[int], width: int) -> None:
    """Allocate an output that is copied into one that was given."""
    if call.kwargs.get("out") is not None:
        call.alloc_temp(prod(sizes) * width)


define(
    "aten::blackman_window",
    "aten::blackman_window.periodic",
    "aten::kaiser_window",
    "aten::kaiser_window.periodic",
    "aten::kaiser_window.beta",
    source="aten/src/ATen/native/TensorFactories.cpp",
    composite=as_on_cpu,
)
