"""The table: which entry each op has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import cublas, indexing, reductions
from .entry import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .launch import Launch

_BLAS: Final = "aten/src/ATen/native/cuda/Blas.cpp, aten/src/ATen/cuda/CublasHandlePool.cpp"
_REDUCE: Final = "aten/src/ATen/native/cuda/Reduce.cuh"


def _nothing(launch: Launch) -> None:
    """After its results are made, the op takes nothing more."""


_bmm = Entry(cublas.batched, _BLAS, Basis.RECORDING)
_baddbmm = Entry(cublas.batched, _BLAS, Basis.ESTIMATE)
_mm = Entry(cublas.matrices, _BLAS, Basis.ESTIMATE)
_mv = Entry(cublas.vectors, _BLAS, Basis.ESTIMATE)

_INDEXING: Final = "aten/src/ATen/native/cuda/Indexing.cu, TensorAdvancedIndexingUtils.h"
_index = Entry(_nothing, _INDEXING, Basis.RECORDING, indexing.read)
_index_put = Entry(_nothing, _INDEXING, Basis.RECORDING, indexing.write)


def _reduction(take: Any, basis: Basis = Basis.ESTIMATE) -> Entry:
    return Entry(take, _REDUCE, basis)


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::mm": _mm,
    "aten::addmm": _mm,
    "aten::_addmm_activation": _mm,
    "aten::mv": _mv,
    "aten::addmv": _mv,
    "aten::dot": _mv,
    "aten::vdot": _mv,
    "aten::index.Tensor": _index,
    "aten::_unsafe_index.Tensor": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::_unsafe_index_put": _index_put,
    "aten::embedding_dense_backward": Entry(
        indexing.embedding_gradient,
        "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu",
        Basis.ESTIMATE,
    ),
    "aten::sum": _reduction(reductions.sums(None, 1), Basis.RECORDING),
    "aten::sum.dim_IntList": _reduction(reductions.sums(1, 3), Basis.RECORDING),
    "aten::nansum": _reduction(reductions.sums(1, 3)),
    "aten::mean": _reduction(reductions.sums(None)),
    "aten::mean.dim": _reduction(reductions.sums(1)),
    "aten::prod": _reduction(reductions.sums(None, 1)),
    "aten::prod.dim_int": _reduction(reductions.sums(1, 3)),
    "aten::linalg_vector_norm": _reduction(reductions.sums(2)),
    "aten::norm.Scalar": _reduction(reductions.sums(None)),
    "aten::norm.ScalarOpt_dim": _reduction(reductions.sums(2)),
    "aten::max.dim": _reduction(reductions.values_and_indices(1), Basis.RECORDING),
    "aten::min.dim": _reduction(reductions.values_and_indices(1)),
    "aten::argmax": _reduction(reductions.values_and_indices(1)),
    "aten::argmin": _reduction(reductions.values_and_indices(1)),
    "aten::max": _reduction(reductions.values(None)),
    "aten::min": _reduction(reductions.values(None)),
    "aten::amax": _reduction(reductions.values(1)),
    "aten::amin": _reduction(reductions.values(1)),
    "aten::all": _reduction(reductions.values(None)),
    "aten::any": _reduction(reductions.values(None)),
    "aten::all.dim": _reduction(reductions.values(1)),
    "aten::any.dim": _reduction(reductions.values(1)),
    "aten::var.correction": _reduction(reductions.moments(1)),
    "aten::std.correction": _reduction(reductions.moments(1)),
}
"""Entry of each op, by its name, with the overload's behind a dot where it has one."""


def entry_of(op: Any) -> Entry | None:
    """The entry of an op.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        the entry, None if the table has none.
    """
    schema = op._schema
    name, overload = schema.name, schema.overload_name
    return ENTRIES.get(f"{name}.{overload}" if overload else name)
