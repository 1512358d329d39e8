"""Ops on sparse tensors without values: as many elements as their arguments have.

Conversions to sparse layouts (``dense_to_sparse`` and its siblings of ``TensorConversions.cpp`` in
``aten/src/ATen/native``) call the same ops on both devices: they look for the elements that are
not zero, and gather indices and values. Without values, all elements are taken not to be zero.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from ..machine import active
from ..machine.refused_calls import unsupported
from ..machine.tensor_values import Bound, TensorValues
from .core.low_precision import in_complex_single
from .core.memory_formats import LOW_PRECISION
from .core.registry import DISTINCT, AssumedSize, Implementation, as_on_cpu, define

_CPU: Final = torch.device("cpu")


def _same_elements(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].layout is not torch.sparse_coo:  # its indices have values
        return torch.ops.aten.clone.default(*args, **kwargs)
    return _like(tensors, args[0], is_coalesced=args[0].is_coalesced())


def _all_distinct(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    indices, values = tensor._indices(), tensor._values()
    elements: int = indices.shape[1]
    if tensors.is_known(indices):
        count = torch.unique(indices, dim=1).shape[1]
    else:
        count = _COALESCED.of(tensors, "aten::_coalesce", elements, elements)
    distinct = tensors.make(tuple(indices.shape), indices.dtype)
    if len(indices) > 1:
        distinct = tensors.make((len(indices), count), indices.dtype)
    sums = tensors.make((count, *values.shape[1:]), values.dtype)
    return _assembled(tensor, distinct.resize_(len(indices), count), sums, is_coalesced=True)


def _coalesced(tensor: torch.Tensor) -> torch.Tensor:
    """Equal elements are added in single precision, and leave no room."""
    # ``coalesceValuesKernel`` of ``SparseCUDAApplyUtils.cuh`` adds in ``acc_type``; the CPU rounds
    # each sum, and has no kernel for complex half. The CPU leaves room for elements that were
    # equal; CUDA does so for one row of indices only (``SparseCUDATensor.cu``).
    dtype, added = tensor.dtype, tensor
    if dtype in _SINGLE:
        values = tensor._values().to(_SINGLE[dtype])
        added = _assembled(tensor, tensor._indices(), values, is_coalesced=False)
    coalesced = torch.ops.aten._coalesce.default(added)
    indices, sums = coalesced._indices(), coalesced._values().to(dtype, copy=True)
    room = torch.empty_like(tensor._indices() if len(indices) == 1 else indices)
    distinct = room.resize_(indices.shape).copy_(indices)
    return _assembled(tensor, distinct, sums, is_coalesced=True)


_SINGLE: Final = {
    **dict.fromkeys(LOW_PRECISION, torch.float32),
    torch.complex32: torch.complex64,
}

_COALESCED: Final = AssumedSize("Tensor.coalesce", DISTINCT, Bound.AT_MOST, "coalesce")


def written(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an op that writes to its first argument."""
    target = args[0]
    if target.layout is torch.strided:
        tensors.forget_values(target)
    return target


def _dense(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensors.make(tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype)


def _masked(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = tensors.make(tuple(args[1]._values().shape), args[0].dtype)
    return _assembled(args[1], args[1]._indices().clone(), values, is_coalesced=True)


def product(tensors: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A dense product of a sparse and a dense matrix."""
    first, second = args[-2:]
    if torch.strided not in (first.layout, second.layout):
        raise unsupported("a product of two sparse matrices without values")
    return tensors.make((first.shape[0], second.shape[1]), first.dtype)


def _like(tensors: TensorValues, tensor: torch.Tensor, is_coalesced: bool) -> torch.Tensor:
    parts = tensor._indices(), tensor._values()
    made = (tensors.make(tuple(part.shape), part.dtype) for part in parts)
    return _assembled(tensor, *made, is_coalesced=is_coalesced)


def _assembled(
    like: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    *,
    is_coalesced: bool,
    device: torch.device = _CPU,
) -> torch.Tensor:
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    dims = like.sparse_dim(), like.dense_dim(), list(like.shape)
    options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": device}
    assembled: torch.Tensor = make(*dims, indices, values, is_coalesced=is_coalesced, **options)
    return assembled


def sparse_sum(first: torch.Tensor, second: Any, *, alpha: Any = 1) -> Any:
    """``add_out_sparse_cuda`` of ``SparseCUDATensorMath.cu``: elements of both, side by side."""
    # The CPU merges them.
    gpu = active.gpu_of(first)
    if gpu is None or not _are_alike(first, second):
        return NotImplemented
    if active.gpu_of(second) is not gpu:
        return NotImplemented  # which is refused
    dtype = torch.result_type(first, second)
    added = second._values().to(dtype)
    indices = torch.cat((first._indices(), second._indices()), 1)
    values = torch.cat((first._values().to(dtype), added if alpha == 1 else added * alpha))
    kept = first if not second._nnz() else second
    is_coalesced = kept.is_coalesced() and not (first._nnz() and second._nnz())
    total = _assembled(first, indices, values, is_coalesced=is_coalesced, device=gpu.device)
    if total._nnz() <= total.numel():
        return total
    distinct = total.coalesce()
    parts = distinct._indices(), distinct._values()
    return _assembled(first, *parts, is_coalesced=False, device=gpu.device)


def sparse_difference(first: torch.Tensor, second: Any, *, alpha: Any = 1) -> Any:
    return sparse_sum(first, second, alpha=-alpha)


def sparse_product(first: torch.Tensor, second: Any) -> Any:
    """Of truths the CPU multiplies those only whose elements may come in any order."""
    if not (_are_alike(first, second) and first.dtype is second.dtype is torch.bool):
        return NotImplemented
    gpu = active.gpu_of(first)
    if gpu is None or not (first.is_coalesced() and second.is_coalesced()):
        return NotImplemented
    parts = first._indices(), first._values()
    in_any_order = _assembled(first, *parts, is_coalesced=False, device=gpu.device)
    return (in_any_order * second)._coalesced_(True)


def calls_others(op: Any) -> Implementation:
    """A composite that runs the kernel of sparse tensors, which calls ops as CUDA's does."""
    return functools.partial(op._op_dk, torch._C.DispatchKey.SparseCPU)


def in_place(composite: Implementation) -> Implementation:
    """A composite of sparse tensors whose result the first of them becomes."""

    def replace(first: torch.Tensor, *others: Any, **named: Any) -> Any:
        result = composite(first, *others, **named)
        if result is NotImplemented or not torch.can_cast(result.dtype, first.dtype):
            return NotImplemented
        first.data = result.to(first.dtype)
        return first

    return replace


def _are_alike(first: torch.Tensor, second: Any) -> bool:
    return (
        isinstance(second, torch.Tensor)
        and second.layout is torch.sparse_coo
        and first.shape == second.shape
        and first.sparse_dim() == second.sparse_dim()
    )


define("aten::_coalesce", sparse=_all_distinct, reference=_coalesced)
define("aten::_sparse_addmm", sparse=product)
define(
    "aten::_to_dense",
    sparse=_dense,
    reference=in_complex_single(torch.ops.aten._to_dense.default),
)
define(
    "aten::_sparse_sum.dim",
    source="aten/src/ATen/native/sparse/SparseTensorMath.cpp",
    composite=as_on_cpu,
)
define("aten::clone", sparse=_same_elements)
define("aten::sparse_mask", sparse=_masked)
define("aten::add_.Tensor", sparse=written, composite_of_sparse=in_place(sparse_sum))
define("aten::sub_.Tensor", composite_of_sparse=in_place(sparse_difference))
define("aten::add_.*", "aten::mul_.*", "aten::zero_", sparse=written)
define(
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_sparse_coo_tensor_unsafe",
    touches_no_element=True,
)


define(
    "aten::_to_sparse",
    "aten::_to_sparse.sparse_dim",
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    composite=as_on_cpu,
)
