"""Reductions, histograms and scans: what each accumulates in, and temporary storage of scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..core import cub
from ..core.cuda_dispatch import overload_named
from ..core.memory_formats import LOW_PRECISION
from ..core.op_call import OpCall, contiguous
from ..core.reduction_workspace import (
    VALUE_AND_INDEX,
    Kernel,
    alloc_bounds,
    alloc_reduction_workspace,
    alloc_sum_workspace,
)
from ..core.registry import as_on_cpu, define, estimated, op, recorded
from ..sparse import calls_others

_REDUCE: Final = "aten/src/ATen/native/cuda/Reduce.cuh"
_REDUCE_OPS: Final = "aten/src/ATen/native/ReduceOps.cpp, cuda/Reduce.cuh"
_SUMMARY: Final = "aten/src/ATen/native/TensorAdvancedIndexing.cpp, cuda/Reduce.cuh"
_TRACE: Final = "aten/src/ATen/native/cuda/TriangularOps.cu, Reduce.cuh"

_source: Final = partial(op, source=_REDUCE)
_recorded: Final = partial(recorded, source=_REDUCE)


def _sums(call: OpCall) -> None:
    """``sum``, ``mean``, ``prod``, norms: an accumulator of the type's own width or 4 bytes."""
    call.alloc_outputs()
    result, tensor = call.result, call.args[0]
    cast = _is_cast_first(tensor.dtype, result.dtype)
    if cast:
        call.alloc_temp(tensor.numel() * result.element_size())
    element = result.element_size() if cast else tensor.element_size()
    alloc_sum_workspace(call, tensor, call.argument("dim"), result.dtype, element)


def _trace(_gpu: SimulatedGPU, matrix: torch.Tensor) -> Any:
    return matrix.diagonal().sum() if matrix.dim() == 2 else NotImplemented


def _reduction(kernel_of: Callable[[OpCall], Kernel]) -> Callable[[OpCall], None]:
    """The outputs, and the workspace of a kernel."""

    def memory(call: OpCall) -> None:
        call.alloc_outputs()
        tensor: torch.Tensor = call.args[0]
        result = call.result[0] if isinstance(call.result, (tuple, list)) else call.result
        widths = (tensor.element_size(), result.element_size())
        alloc_reduction_workspace(call, tensor, call.argument("dim"), kernel_of(call), widths)

    return memory


@_reduction
def _values_and_indices(_call: OpCall) -> Kernel:
    """``max``, ``min``, ``argmax`` of a dimension: the accumulator is a value and its index."""
    return Kernel(VALUE_AND_INDEX, fits_result=False)


@_reduction
def _values(call: OpCall) -> Kernel:
    """``amax``, ``amin``, ``all``, ``any``: the accumulator is an element of the result."""
    result: torch.Tensor = call.result
    return Kernel(result.element_size(), fits_result=result.dtype not in LOW_PRECISION)


@_reduction
def _moments(call: OpCall) -> Kernel:
    """``var`` and ``std``: the accumulator is a mean, a sum of squares and two counts."""
    width = 32 if call.args[0].dtype == torch.float64 else 16
    return Kernel(width, vector=2, fits_result=False)


@_source("aten::aminmax")
@_reduction
def _aminmax(call: OpCall) -> Kernel:
    return Kernel(2 * call.args[0].element_size(), fits_result=False)


def _count_nonzero(_gpu: SimulatedGPU, tensor: torch.Tensor, dims: list[int]) -> Any:
    return (tensor if tensor.dtype == torch.bool else tensor.ne(0)).sum(dims)


def _in_complex_single(reduce: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The reference of a reduction of which the CPU has no kernel for complex half precision."""

    def compute(tensor: torch.Tensor, *args: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        if torch.complex32 not in (tensor.dtype, dtype):
            return reduce(tensor, *args, dtype=dtype)
        wide = reduce(tensor.to(torch.complex64), *args, dtype=_widened(dtype))
        return wide.to(dtype or tensor.dtype)

    return compute


def _widened(dtype: torch.dtype | None) -> torch.dtype | None:
    return torch.complex64 if dtype is torch.complex32 else dtype


@_in_complex_single
def _nansum(
    tensor: torch.Tensor, dim: Any = None, *args: Any, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Of complex numbers too, which the CPU's kernel refuses."""
    return torch.sum(tensor.where(~tensor.isnan(), 0), dim, *args, dtype=dtype)


def _is_cast_first(tensor: torch.dtype, result: torch.dtype) -> bool:
    """True if a sum's input is copied to the result's dtype: not for half to float."""
    if tensor == result or tensor.is_complex:
        return False
    return not (result == torch.float32 and tensor in LOW_PRECISION)


define("aten::dist", "aten::logsumexp", source=_REDUCE_OPS, composite=as_on_cpu)
define("aten::trace", source=_TRACE, composite=_trace)
define("aten::count_nonzero", source=_SUMMARY, composite=as_on_cpu)
define("aten::count_nonzero.dim_IntList", source=_SUMMARY, composite=_count_nonzero)

for _name in ("sum", "sum.dim_IntList"):
    _recorded(
        f"aten::{_name}",
        reference=_in_complex_single(overload_named(_name)),
        composite_of_sparse=calls_others(overload_named(_name)),
    )(_sums)
for _name in ("prod", "prod.dim_int"):
    _source(f"aten::{_name}", reference=_in_complex_single(overload_named(_name)))(_sums)
_recorded("aten::max.dim")(_values_and_indices)
_source("aten::mean", "aten::norm.Scalar", "aten::norm.ScalarOpt_dtype", "aten::mean.dim")(_sums)
_source("aten::nansum", reference=_nansum)(_sums)
_source("aten::linalg_vector_norm", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype")(
    _sums
)
_source("aten::min.dim", "aten::argmax", "aten::argmin")(_values_and_indices)
_source("aten::max", "aten::min", "aten::_is_all_true", "aten::_is_any_true")(_values)
_source("aten::all", "aten::all.dim", "aten::all.dims", "aten::amax")(_values)
_source("aten::any", "aten::any.dim", "aten::any.dims", "aten::amin")(_values)
_source("aten::var.correction", "aten::std.correction")(_moments)
_source("aten::var_mean.correction", "aten::std_mean.correction")(_moments)


def histc(tensor: torch.Tensor, bins: int = 100, low: int = 0, high: int = 0) -> torch.Tensor:
    """The number of elements in each of some bins of equal width.

    >>> histc(torch.tensor([0, 1, 1, 3, 7]), 4, 0, 3).tolist()
    [1, 2, 0, 1]
    """
    # CUDA finds the bin of an integer in integers (``SummaryOps.cu``): doubles find the same one.
    if tensor.is_floating_point():
        _refuse_infinite_range(tensor, low, high)
        return torch.histc(tensor, bins, low, high)
    return torch.histc(tensor.double(), bins, int(low), int(high)).long().to(tensor.dtype)


def _refuse_infinite_range(tensor: torch.Tensor, low: float, high: float) -> None:
    if low == high and tensor.numel():
        low, high = tensor.min().item(), tensor.max().item()
        if low == high:
            low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low:g}, {high:g}] is not finite")


@op("aten::histc", source="aten/src/ATen/native/cuda/SummaryOps.cu", reference=histc)
def _histc_memory(call: OpCall) -> None:
    """The smallest and the largest element are found first, unless the program gives bounds."""
    tensor: torch.Tensor = call.args[0]
    call.alloc_outputs()
    if call.argument("min") == call.argument("max") and tensor.numel():
        alloc_bounds(call, tensor)


_MOST_AT_ONCE: Final = 2**30
"""Elements that one call of CUB scans."""

_ITEMS: Final = 16
"""Elements that a thread of a deterministic scan takes."""

_SCANS: Final = "aten/src/ATen/native/cuda/ScanKernels.cpp, ScanUtils.cuh"


def _scan(call: OpCall, *, is_sum: bool = False) -> None:
    """A contiguous input of the result's type, and the scan of a row."""
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    result: torch.Tensor = call.result
    if not tensor.dim() or not tensor.numel():
        return
    nbytes = tensor.numel() * result.element_size()
    if tensor.dtype != result.dtype:
        call.alloc_temp(nbytes)
    call.alloc_contiguous(result)
    if not tensor.is_contiguous():
        call.alloc_temp(nbytes)
    if tensor.numel() == tensor.shape[call.argument("dim")]:
        scan_row(call, tensor.numel(), result.dtype, is_sum=is_sum)


def scan_row(call: OpCall, count: int, dtype: torch.dtype, *, is_sum: bool = True) -> None:
    """Allocate and free the temporary storage of a scan of one row."""
    size = dtype.itemsize
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if is_sum and is_inexact and torch.are_deterministic_algorithms_enabled():
        # ``block_threads`` of ``ATen/cuda/cub.cuh``
        threads = 128 if size >= 16 else 256 if size >= 8 else 512
        blocks = -(-count // (threads * _ITEMS))
        call.alloc_and_free(min(blocks, call.model.multi_processor_count) * size)
        return
    call.alloc_and_free(cub.scan(min(count, _MOST_AT_ONCE), size))
    for begin in range(_MOST_AT_ONCE, count, _MOST_AT_ONCE):
        with call.scope():
            call.alloc_temps([size, cub.scan(min(count - begin, _MOST_AT_ONCE), size)])


op("aten::cummax", "aten::cummin", source=_SCANS)(contiguous(0))
estimated("aten::cumsum", "aten::cumsum_", source=_SCANS)(partial(_scan, is_sum=True))
estimated(
    "aten::cumprod", "aten::cumprod_", "aten::logcumsumexp", "aten::_logcumsumexp", source=_SCANS
)(_scan)
