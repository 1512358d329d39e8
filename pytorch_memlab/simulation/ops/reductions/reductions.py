"""Reductions: sums, norms, extremes and moments, and what each accumulates in."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import LOW_PRECISION
from ..memory_model import Basis, Entry
from ..reduction_workspace import (
    VALUE_AND_INDEX,
    Kernel,
    reduced_dims,
    stage,
    stage_pairs,
    stage_sum,
    stage_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..op_call import OpCall

    Take = Callable[[OpCall], None]


def sums(dim_position: int | None) -> Take:
    """``sum``, ``mean``, ``prod``, norms: an accumulator of the type's own width or 4 bytes."""

    def take(call: OpCall) -> None:
        result, source = call.result, call.args[0]
        cast = _is_cast_first(source.dtype, result.dtype)
        if cast:
            call.alloc_temp(source.numel() * result.element_size())
        dims = None if dim_position is None else call.argument(dim_position, "dim")
        element = result.element_size() if cast else source.element_size()
        stage_sum(call, source, dims, result.dtype, element)

    return take


def trace(call: OpCall) -> None:
    """``trace``: the sum of the diagonal."""
    diagonal: torch.Tensor = call.args[0].diagonal()
    dtype = call.result.dtype
    if _is_cast_first(diagonal.dtype, dtype):
        diagonal = torch.empty(diagonal.shape, dtype=dtype, device="meta")
        call.alloc_copy(diagonal)
    stage_sum(call, diagonal, None, dtype)


def values_and_indices(dim_position: int) -> Take:
    """``max``, ``min``, ``argmax`` of a dimension: the accumulator is a value and its index."""
    return _plain(dim_position, lambda _: Kernel(VALUE_AND_INDEX, fits_result=False))


def values(dim_position: int | None) -> Take:
    """``amax``, ``amin``, ``all``, ``any``: the accumulator is an element of the result."""

    def kernel(call: OpCall) -> Kernel:
        result: torch.Tensor = call.result
        return Kernel(result.element_size(), fits_result=result.dtype not in LOW_PRECISION)

    return _plain(dim_position, kernel)


def smallest_and_largest(call: OpCall) -> None:
    """``aminmax``: the accumulator is a pair of elements."""
    stage_pairs(call, call.args[0])


def moments(dim_position: int | None) -> Take:
    """``var`` and ``std``: the accumulator is a mean, a sum of squares and two counts."""
    return _plain(
        dim_position,
        lambda call: Kernel(
            32 if call.args[0].dtype == torch.float64 else 16, vector=2, fits_result=False
        ),
    )


def count_mask(call: OpCall) -> None:
    """``count_nonzero``, before its result: a mask of what is not zero, unless that is given."""
    source: torch.Tensor = call.args[0]
    if source.dtype != torch.bool:
        call.alloc_temp(source.numel())


def counted(call: OpCall) -> None:
    """``count_nonzero``: the sum of a mask, whose elements are made as wide as the sum's."""
    source: torch.Tensor = call.args[0]
    call.alloc_temp(source.numel() * 8)
    stage_sum(call, source, call.argument(1, "dim"), torch.int64, 8)


def distances(call: OpCall) -> None:
    """``dist``, before its result: the difference whose norm is taken."""
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    call.alloc_temp(prod(shape) * torch.promote_types(first.dtype, second.dtype).itemsize)


def distance(call: OpCall) -> None:
    """``dist``: the norm of the difference."""
    stage_sum(call, call.args[0])


def exponentials(call: OpCall) -> None:
    """``logsumexp``, before its result: the largest values, and the exponentials to be summed."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    dims = reduced_dims(call.argument(1, "dim"), source.dim())
    width = source.element_size() if source.is_floating_point() else 4
    reduced = prod(source.shape[dim] for dim in dims) if source.dim() else 1
    largest = source.numel() // reduced * width
    call.alloc_temp(largest)
    stage_values(call, source, dims)
    with call.scope():  # where they are infinite
        call.alloc_temp(largest)
        call.alloc_temp(largest // width)
    call.alloc_temp(source.numel() * width)


def summed_exponentials(call: OpCall) -> None:
    """``logsumexp``: the sum of the exponentials."""
    stage_sum(call, call.args[0], call.argument(1, "dim"), call.result.dtype)


def _is_cast_first(source: torch.dtype, result: torch.dtype) -> bool:
    """Whether a sum's input is copied to the result's dtype: not for half to float."""
    if source == result or source.is_complex:
        return False
    return not (result == torch.float32 and source in LOW_PRECISION)


def _plain(dim_position: int | None, kernel_of: Callable[[OpCall], Kernel]) -> Take:
    def take(call: OpCall) -> None:
        source: torch.Tensor = call.args[0]
        result = call.result[0] if isinstance(call.result, (tuple, list)) else call.result
        dims = None if dim_position is None else call.argument(dim_position, "dim")
        widths = (source.element_size(), result.element_size())
        stage(call, source.shape, source.stride(), dims, widths, kernel_of(call))

    return take


def _reduction(take: Take, basis: Basis = Basis.SOURCE) -> Entry:
    return Entry(take, "aten/src/ATen/native/cuda/Reduce.cuh", basis)


_REDUCE_OPS: Final = "aten/src/ATen/native/ReduceOps.cpp, cuda/Reduce.cuh"
_TRACE: Final = "aten/src/ATen/native/cuda/TriangularOps.cu, Reduce.cuh"
_SUMMARY: Final = "aten/src/ATen/native/TensorAdvancedIndexing.cpp, cuda/Reduce.cuh"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::sum": _reduction(sums(None), Basis.RECORDING),
    "aten::sum.dim_IntList": _reduction(sums(1), Basis.RECORDING),
    "aten::nansum": _reduction(sums(1)),
    "aten::mean": _reduction(sums(None)),
    "aten::mean.dim": _reduction(sums(1)),
    "aten::prod": _reduction(sums(None)),
    "aten::prod.dim_int": _reduction(sums(1)),
    "aten::linalg_vector_norm": _reduction(sums(2)),
    "aten::norm.Scalar": _reduction(sums(None)),
    "aten::norm.ScalarOpt_dtype": _reduction(sums(None)),
    "aten::norm.ScalarOpt_dim": _reduction(sums(2)),
    "aten::norm.ScalarOpt_dim_dtype": _reduction(sums(2)),
    "aten::max.dim": _reduction(values_and_indices(1), Basis.RECORDING),
    "aten::min.dim": _reduction(values_and_indices(1)),
    "aten::argmax": _reduction(values_and_indices(1)),
    "aten::argmin": _reduction(values_and_indices(1)),
    "aten::max": _reduction(values(None)),
    "aten::min": _reduction(values(None)),
    "aten::amax": _reduction(values(1)),
    "aten::amin": _reduction(values(1)),
    "aten::aminmax": _reduction(smallest_and_largest),
    "aten::all": _reduction(values(None)),
    "aten::any": _reduction(values(None)),
    "aten::_is_all_true": _reduction(values(None)),
    "aten::_is_any_true": _reduction(values(None)),
    "aten::all.dim": _reduction(values(1)),
    "aten::any.dim": _reduction(values(1)),
    "aten::all.dims": _reduction(values(1)),
    "aten::any.dims": _reduction(values(1)),
    "aten::var.correction": _reduction(moments(1)),
    "aten::std.correction": _reduction(moments(1)),
    "aten::var_mean.correction": _reduction(moments(1)),
    "aten::std_mean.correction": _reduction(moments(1)),
    "aten::trace": Entry(trace, _TRACE, Basis.SOURCE),
    "aten::count_nonzero": Entry(counted, _SUMMARY, Basis.SOURCE, count_mask),
    "aten::count_nonzero.dim_IntList": Entry(counted, _SUMMARY, Basis.SOURCE, count_mask),
    "aten::dist": Entry(distance, _REDUCE_OPS, Basis.SOURCE, distances),
    "aten::logsumexp": Entry(summed_exponentials, _REDUCE_OPS, Basis.SOURCE, exponentials),
}
