"""Fourier transforms: the copies that cuFFT needs, and its work area, which only cuFFT knows.

cuFFT transforms up to three dimensions at once, of a batch that is one dimension. Its plan says
how much memory it works in (``native/cuda/CuFFTPlanCache.h``): no bytes are counted for that, and
the op is named among those that take memory of unknown size. Windows are made of several tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from .core.memory_formats import can_view, laid_out_by, on_meta
from .core.op_call import OpCall
from .core.registry import as_on_cpu, define, estimated

_SOURCE: Final = "aten/src/ATen/native/cuda/SpectralOps.cpp, CuFFTPlanCache.h"

_aten: Final = torch.ops.aten
_MOST_DIMS: Final = 3
"""Dimensions that one plan transforms at most."""

_HALVES: Final = (torch.float16, torch.complex32)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A transform that cuFFT runs at once, of tensors on the meta device."""

    signal: torch.Tensor
    sizes: Sequence[int]
    dims: Sequence[int]
    dtype: torch.dtype

    def order(self) -> list[int]:
        """The dimensions as cuFFT takes them: the batch first, in the order of its strides."""
        batch = [dim for dim in range(self.signal.dim()) if dim not in self.dims]
        batch.sort(key=self.signal.stride, reverse=True)
        return [*batch, *self.dims]

    def output(self) -> torch.Tensor:
        """Its result, which lies in the order in which cuFFT took the dimensions."""
        order = self.order()
        sizes = [self.sizes[dim] for dim in order]
        laid_out = torch.empty(sizes, dtype=self.dtype, device="meta")
        return laid_out.permute([order.index(dim) for dim in range(len(order))])


def _plans_r2c(source: torch.Tensor, dims: Sequence[int], *, onesided: bool) -> list[_Plan]:
    half = list(source.shape)
    half[dims[-1]] = half[dims[-1]] // 2 + 1
    dtype = source.dtype.to_complex()
    if _is_one_plan(dims):
        return [_Plan(source, half if onesided else source.shape, dims, dtype)]
    first = _Plan(source, half, dims[-1:], dtype)
    return [first, *_plans_c2c(first.output(), dims[:-1])]


def _plans_c2r(source: torch.Tensor, dims: Sequence[int], length: int) -> list[_Plan]:
    sizes = list(source.shape)
    sizes[dims[-1]] = length
    dtype = source.dtype.to_real()
    if _is_one_plan(dims):
        return [_Plan(source.contiguous(), sizes, dims, dtype)]
    plans = _plans_c2c(source, dims[:-1])
    return [*plans, _Plan(plans[-1].output(), sizes, dims[-1:], dtype)]


def _plans_c2c(signal: torch.Tensor, dims: Sequence[int]) -> list[_Plan]:
    plans = []
    while dims:
        ordered = sorted(dims, key=signal.stride, reverse=True)  # those that lie closest first
        dims, now = ordered[:-_MOST_DIMS], ordered[-_MOST_DIMS:]
        plans.append(_Plan(signal, signal.shape, now, signal.dtype))
        signal = plans[-1].output()
    return plans


def _meta_r2c(
    source: torch.Tensor, dims: Sequence[int], _normalization: int, onesided: bool
) -> torch.Tensor:
    output = _plans_r2c(source, dims, onesided=onesided)[-1].output()
    if onesided or output.shape == source.shape:
        return output
    return output.new_empty(source.shape)


def _meta_c2r(
    source: torch.Tensor, dims: Sequence[int], _normalization: int, length: int
) -> torch.Tensor:
    return _plans_c2r(source, dims, length)[-1].output()


def _meta_c2c(
    source: torch.Tensor, dims: Sequence[int], _normalization: int, _forward: bool
) -> torch.Tensor:
    return _plans_c2c(source, dims)[-1].output() if dims else torch.empty_like(source)


@estimated(
    "aten::_fft_r2c",
    source=_SOURCE,
    meta=_meta_r2c,
    reference=laid_out_by(_meta_r2c, _aten._fft_r2c.default),
)
def _fft_r2c(call: OpCall) -> None:
    """A copy of what is not aligned as complex numbers are; stages if many."""
    call.alloc_outputs()
    source, dims, _, onesided = call.args[:4]
    if not source.numel():
        return
    last = dims[-1]
    sizes = list(source.shape)
    if onesided or call.kwargs.get("out") is not None:
        sizes[last] = sizes[last] // 2 + 1
    complex_size = 2 * source.element_size()
    _alloc_output_aside(call, sizes, complex_size)
    signal = on_meta(source)
    copy = None
    if source.storage_offset() * source.element_size() % complex_size:
        copy = call.alloc_copy(source)
        signal = signal.movedim(last, -1).contiguous().movedim(-1, last)
    first, *others = _plans_r2c(signal, dims, onesided=onesided)
    _transform(call, first)
    if others:
        call.alloc_temp(prod(sizes) * complex_size)
        if copy is not None:
            call.free_temp(copy)
    for plan in others:
        _transform(call, plan)


@estimated(
    "aten::_fft_c2r",
    source=_SOURCE,
    meta=_meta_c2r,
    reference=laid_out_by(_meta_c2r, _aten._fft_c2r.default),
)
def _fft_c2r(call: OpCall) -> None:
    """A copy of its input, which cuFFT may write over."""
    call.alloc_outputs()
    source, dims, _, length = call.args[:4]
    if not source.numel():
        return
    *stages, last = _plans_c2r(on_meta(source), dims, length)
    _alloc_output_aside(call, last.sizes, source.element_size() // 2)
    call.alloc_copy(source)
    with call.scope():
        _transform_in_stages(call, stages)
    _transform(call, last)


@estimated(
    "aten::_fft_c2c",
    source=_SOURCE,
    meta=_meta_c2c,
    reference=laid_out_by(_meta_c2c, _aten._fft_c2c.default),
)
def _fft_c2c(call: OpCall) -> None:
    """A second result where one plan does not transform all dimensions."""
    call.alloc_outputs()
    source, dims = call.args[:2]
    if source.numel() and dims:
        _alloc_output_aside(call, list(source.shape), source.element_size())
        _transform_in_stages(call, _plans_c2c(on_meta(source), dims))


def _transform_in_stages(call: OpCall, plans: Sequence[_Plan]) -> None:
    """Transform complex numbers, from one of two tensors to the other, of which one is there."""
    for position, plan in enumerate(plans):
        _transform(call, plan)
        if position == 0 and len(plans) > 1:
            call.alloc_copy(plan.signal)


def _transform(call: OpCall, plan: _Plan) -> None:
    """Run one plan: what its strides cannot tell is copied, its work area is not known."""
    permuted = plan.signal.permute(plan.order())
    shape = [-1, *permuted.shape[-len(plan.dims) :]]
    with call.scope():
        if not can_view(permuted, shape):
            call.alloc_copy(plan.signal)
        collapsed = permuted.reshape(shape)
        if _must_be_cloned(collapsed, [plan.sizes[dim] for dim in plan.dims]):
            call.alloc_copy(plan.signal)
        call.leave_out("cuFFT work areas", _most_work(plan))


def _most_work(plan: _Plan) -> int:
    """Bytes: eight complex numbers for each element, the worst case of cuFFT's documentation."""
    complex_size = max(2 * plan.signal.dtype.to_real().itemsize, 8)
    elements = max(plan.signal.numel(), prod(plan.sizes))
    return 8 * elements * complex_size


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
