"""Jagged rows: what turns them into padded ones and back."""

from __future__ import annotations

from typing import Final

import torch

from .core.op_call import OpCall
from .core.reduction_workspace import alloc_extremes_workspace
from .core.registry import op

_SOURCE: Final = "aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu"

_PLACE: Final = 4
"""Bytes of an element's row, or of its column."""

_ALIGNED: Final = 8
"""Half-precision numbers that the fast kernel reads at once."""

_JAGGED_AND_ROWS: Final = 3


@op("aten::_jagged_to_padded_dense_forward", source=_SOURCE)
def _pad(call: OpCall) -> None:
    """Contiguous offsets."""
    call.alloc_outputs()
    call.alloc_contiguous(*call.args[1])


def _unpad_meta(dense: torch.Tensor, _offsets: object, count: int | None = None) -> torch.Tensor:
    if count is None:
        raise NotImplementedError  # offsets have no values
    return dense.new_empty(count, dense.shape[-1])


@op("aten::_padded_dense_to_jagged_forward", source=_SOURCE, meta=_unpad_meta)
def _unpad(call: OpCall) -> None:
    """The number of rows, as many unused rows, and what finds them."""
    dense, offsets = call.args[:2]
    result: torch.Tensor = call.result
    if call.argument("total_L") is None:
        with call.scope():
            call.alloc_temp(offsets[-1].element_size())
            alloc_extremes_workspace(call, offsets[-1])
    call.alloc_copy(result)
    call.alloc_outputs()
    if not dense.numel() or not result.numel():
        return
    if dense.dtype == torch.float16 and _is_searched(call, dense, offsets):
        call.alloc_temps([result.shape[0] * _PLACE] * 2)  # rows and columns
    else:
        call.alloc_contiguous(*offsets)


def _is_searched(call: OpCall, dense: torch.Tensor, offsets: list[torch.Tensor]) -> bool:
    """True if rows are found by a search of offsets that fit in two thirds of shared memory."""
    # ``jagged_dense_dense_elementwise_jagged_output_matches_opt`` in ``_SOURCE``, after FBGEMM.
    shared = call.model.shared_memory_per_multiprocessor // 1024 * 2 // 3 // 16 * 16
    strides = (dense.stride(-2), call.result.stride(-2), dense.storage_offset())
    return (
        dense.dim() == _JAGGED_AND_ROWS
        and dense.stride(-1) == 1
        and not any(stride % _ALIGNED for stride in strides)
        and (dense.shape[0] + 1) * offsets[0].element_size() < shared * 1024
    )
