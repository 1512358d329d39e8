"""Conversions to sparse layouts: PyTorch's own code, which calls the same ops on both devices.

``dense_to_sparse`` and its siblings of ``aten/src/ATen/native/TensorConversions.cpp`` look for the
elements that are not zero, and gather indices and values by ordinary ops: what those take, the
conversion takes. Without values, all elements are taken not to be zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPOUND: Final[Mapping[str, None]] = dict.fromkeys(
    (
        "aten::_to_sparse",
        "aten::_to_sparse.sparse_dim",
        "aten::_to_sparse_csr",
        "aten::_to_sparse_csc",
        "aten::_to_sparse_bsr",
        "aten::_to_sparse_bsc",
    )
)
