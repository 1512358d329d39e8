"""Ops that only CUDA has: how the host computes them, and what shapes they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .rnn import fused_cells
from .sorting import unique as uniques

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class CudaOnly:
    """An op that the host has no kernel of, or one with other results than CUDA's.

    Args:
        compute: takes the op's arguments, below autograd, and returns what CUDA's kernel returns.
        meta: the same for tensors on the meta device; None: PyTorch has a meta kernel that holds.
        on_host: positions of results that CUDA makes on the host.
    """

    compute: Callable[..., Any]
    meta: Callable[..., Any] | None = None
    on_host: frozenset[int] = frozenset()


CUDA_ONLY: Final[Mapping[str, CudaOnly]] = {
    "aten::_thnn_fused_lstm_cell": CudaOnly(fused_cells.lstm, fused_cells.lstm_shapes),
    "aten::_thnn_fused_lstm_cell_backward_impl": CudaOnly(
        fused_cells.lstm_backward, fused_cells.lstm_backward_shapes
    ),
    "aten::_thnn_fused_gru_cell": CudaOnly(fused_cells.gru, fused_cells.gru_shapes),
    "aten::_thnn_fused_gru_cell_backward": CudaOnly(
        fused_cells.gru_backward, fused_cells.gru_backward_shapes
    ),
    "aten::_unique2": CudaOnly(uniques.distinct),
    "aten::_unique": CudaOnly(uniques.distinct_without_counts),
    "aten::unique_consecutive": CudaOnly(uniques.consecutive),
    "aten::unique_dim": CudaOnly(uniques.rows),
    "aten::unique_dim_consecutive": CudaOnly(uniques.consecutive_rows),
}
"""By the op's name, with the overload's behind a dot where it has one."""
