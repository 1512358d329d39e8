"""Reductions: sums, norms, extremes and moments, and what each accumulates in."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import LOW_PRECISION
from ..reduction_workspace import (
    VALUE_AND_INDEX,
    Kernel,
    alloc_aminmax_workspace,
    alloc_extremes_workspace,
    alloc_reduction_workspace,
    alloc_sum_workspace,
    reduced_dims,
)
from ..registry import op, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..op_call import OpCall

    Memory = Callable[[OpCall], None]

_REDUCE: Final = "aten/src/ATen/native/cuda/Reduce.cuh"
_REDUCE_OPS: Final = "aten/src/ATen/native/ReduceOps.cpp, cuda/Reduce.cuh"
_SUMMARY: Final = "aten/src/ATen/native/TensorAdvancedIndexing.cpp, cuda/Reduce.cuh"
_TRACE: Final = "aten/src/ATen/native/cuda/TriangularOps.cu, Reduce.cuh"

_source: Final = partial(op, source=_REDUCE)
_recorded: Final = partial(recorded, source=_REDUCE)


def _sums(dim_position: int | None) -> Memory:
    """``sum``, ``mean``, ``prod``, norms: an accumulator of the type's own width or 4 bytes."""

    def memory(call: OpCall) -> None:
        call.alloc_outputs()
        result, tensor = call.result, call.args[0]
        cast = _is_cast_first(tensor.dtype, result.dtype)
        if cast:
            call.alloc_temp(tensor.numel() * result.element_size())
        dims = None if dim_position is None else call.argument(dim_position, "dim")
        element = result.element_size() if cast else tensor.element_size()
        alloc_sum_workspace(call, tensor, dims, result.dtype, element)

    return memory


@op("aten::trace", source=_TRACE)
def _trace(call: OpCall) -> None:
    call.alloc_outputs()
    diagonal: torch.Tensor = call.args[0].diagonal()
    dtype = call.result.dtype
    if _is_cast_first(diagonal.dtype, dtype):
        diagonal = torch.empty(diagonal.shape, dtype=dtype, device="meta")
        call.alloc_copy(diagonal)
    alloc_sum_workspace(call, diagonal, None, dtype)


def _values_and_indices(dim_position: int) -> Memory:
    """``max``, ``min``, ``argmax`` of a dimension: the accumulator is a value and its index."""
    return _plain(dim_position, lambda _: Kernel(VALUE_AND_INDEX, fits_result=False))


def _values(dim_position: int | None) -> Memory:
    """``amax``, ``amin``, ``all``, ``any``: the accumulator is an element of the result."""

    def kernel(call: OpCall) -> Kernel:
        result: torch.Tensor = call.result
        return Kernel(result.element_size(), fits_result=result.dtype not in LOW_PRECISION)

    return _plain(dim_position, kernel)


@_source("aten::aminmax")
def _aminmax(call: OpCall) -> None:
    call.alloc_outputs()
    alloc_aminmax_workspace(call, call.args[0])


def _moments(dim_position: int | None) -> Memory:
    """``var`` and ``std``: the accumulator is a mean, a sum of squares and two counts."""
    return _plain(
        dim_position,
        lambda call: Kernel(
            32 if call.args[0].dtype == torch.float64 else 16, vector=2, fits_result=False
        ),
    )


@op("aten::count_nonzero", "aten::count_nonzero.dim_IntList", source=_SUMMARY)
def _count_nonzero(call: OpCall) -> None:
    """The sum of a mask, whose elements are made as wide as those of the sum."""
    tensor: torch.Tensor = call.args[0]
    if tensor.dtype != torch.bool:
        call.alloc_temp(tensor.numel())
    call.alloc_outputs()
    call.alloc_temp(tensor.numel() * 8)
    alloc_sum_workspace(call, tensor, call.argument(1, "dim"), torch.int64, 8)


@op("aten::dist", source=_REDUCE_OPS)
def _dist(call: OpCall) -> None:
    """The norm of a difference."""
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    call.alloc_temp(prod(shape) * torch.promote_types(first.dtype, second.dtype).itemsize)
    call.alloc_outputs()
    alloc_sum_workspace(call, first)


@op("aten::logsumexp", source=_REDUCE_OPS)
def _logsumexp(call: OpCall) -> None:
    """The largest values, and the exponentials that are summed."""
    tensor: torch.Tensor = call.args[0]
    dims = reduced_dims(call.argument(1, "dim"), tensor.dim())
    if tensor.numel():
        width = tensor.element_size() if tensor.is_floating_point() else 4
        reduced = prod(tensor.shape[dim] for dim in dims) if tensor.dim() else 1
        largest = tensor.numel() // reduced * width
        call.alloc_temp(largest)
        alloc_extremes_workspace(call, tensor, dims)
        with call.scope():  # where they are infinite
            call.alloc_temps([largest, largest // width])
        call.alloc_temp(tensor.numel() * width)
    call.alloc_outputs()
    alloc_sum_workspace(call, tensor, dims, call.result.dtype)


def _is_cast_first(tensor: torch.dtype, result: torch.dtype) -> bool:
    """True if a sum's input is copied to the result's dtype: not for half to float."""
    if tensor == result or tensor.is_complex:
        return False
    return not (result == torch.float32 and tensor in LOW_PRECISION)


def _plain(dim_position: int | None, kernel_of: Callable[[OpCall], Kernel]) -> Memory:
    def memory(call: OpCall) -> None:
        call.alloc_outputs()
        tensor: torch.Tensor = call.args[0]
        result = call.result[0] if isinstance(call.result, (tuple, list)) else call.result
        dims = None if dim_position is None else call.argument(dim_position, "dim")
        widths = (tensor.element_size(), result.element_size())
        alloc_reduction_workspace(
            call, tensor.shape, tensor.stride(), dims, widths, kernel_of(call)
        )

    return memory


_recorded("aten::sum")(_sums(None))
_recorded("aten::sum.dim_IntList")(_sums(1))
_recorded("aten::max.dim")(_values_and_indices(1))
_source("aten::mean", "aten::prod", "aten::norm.Scalar", "aten::norm.ScalarOpt_dtype")(_sums(None))
_source("aten::nansum", "aten::mean.dim", "aten::prod.dim_int")(_sums(1))
_source("aten::linalg_vector_norm", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype")(
    _sums(2)
)
_source("aten::min.dim", "aten::argmax", "aten::argmin")(_values_and_indices(1))
_source("aten::max", "aten::min", "aten::all", "aten::any")(_values(None))
_source("aten::_is_all_true", "aten::_is_any_true")(_values(None))
_source("aten::amax", "aten::amin", "aten::all.dim", "aten::any.dim")(_values(1))
_source("aten::all.dims", "aten::any.dims")(_values(1))
_source("aten::var.correction", "aten::std.correction")(_moments(1))
_source("aten::var_mean.correction", "aten::std_mean.correction")(_moments(1))
