"""Jagged rows: what turns them into padded ones and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_PLACE: Final = 4
"""Bytes of an element's row, or of its column."""

_ALIGNED: Final = 8
"""Half-precision numbers that the fast kernel reads at once."""

_JAGGED_AND_ROWS: Final = 3


def pad(call: OpCall) -> None:
    """``_jagged_to_padded_dense_forward``: contiguous offsets."""
    call.alloc_contiguous(*call.args[1])


def unpad_results(call: OpCall) -> None:
    """``_padded_dense_to_jagged_forward``: how many rows there are, and as many unused ones."""
    if call.argument(2, "total_L") is None:
        with call.scope():
            call.alloc_temp(call.args[1][-1].element_size())
            stage_values(call, call.args[1][-1])
    call.alloc_copy(call.result)
    call.alloc_outputs(call.result)


def unpad(call: OpCall) -> None:
    """``_padded_dense_to_jagged_forward``: rows and columns in half precision, or offsets."""
    dense, offsets = call.args[:2]
    result: torch.Tensor = call.result
    if not dense.numel() or not result.numel():
        return
    if dense.dtype == torch.float16 and _is_searched(call, dense, offsets):
        for _rows_and_columns in range(2):
            call.alloc_temp(result.shape[0] * _PLACE)
    else:
        call.alloc_contiguous(*offsets)


def _is_searched(call: OpCall, dense: torch.Tensor, offsets: list[torch.Tensor]) -> bool:
    """Whether rows are found by a search of offsets that fit in two thirds of shared memory."""
    shared = call.model.shared_memory_per_multiprocessor // 1024 * 2 // 3 // 16 * 16
    strides = (dense.stride(-2), call.result.stride(-2), dense.storage_offset())
    return (
        dense.dim() == _JAGGED_AND_ROWS
        and dense.stride(-1) == 1
        and not any(stride % _ALIGNED for stride in strides)
        and (dense.shape[0] + 1) * offsets[0].element_size() < shared * 1024
    )


_NESTED: Final = "aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_jagged_to_padded_dense_forward": Entry(pad, _NESTED, Basis.SOURCE),
    "aten::_padded_dense_to_jagged_forward": Entry(
        unpad, _NESTED, Basis.SOURCE, make=unpad_results
    ),
}
