"""Conversions to sparse layouts: PyTorch's own code, which calls the same ops on both devices.

``dense_to_sparse`` and its siblings of ``aten/src/ATen/native/TensorConversions.cpp`` look for the
elements that are not zero, and gather indices and values by ordinary ops: what those allocate, the
conversion allocates. Without values, all elements are taken not to be zero.
"""

from __future__ import annotations

from ..registry import as_on_cpu, define

define(
    "aten::_to_sparse",
    "aten::_to_sparse.sparse_dim",
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    composite=as_on_cpu,
)
