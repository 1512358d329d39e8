"""``grouped_mm``: the pointers and sizes of its groups, and CUTLASS's descriptors of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_POINTER: Final = 8
_SIZES: Final = 12
"""Bytes of a group's sizes: three integers of 32 bits."""

_DESCRIPTOR: Final = 128
"""Bytes of a ``CUtensorMap``."""

_DESCRIPTORS: Final = {9: 5, 10: 4}
"""By major compute capability, how many each multiprocessor has: two operands, and two or three for
the result (CUTLASS: ``get_workspace_size`` of the mainloops and epilogues of pointer arrays)."""


def product(call: OpCall) -> None:
    """``_grouped_mm``: one kernel for bfloat16 on GPUs that have it, else a product per group."""
    left: torch.Tensor = call.args[0]
    right: torch.Tensor = call.args[1]
    descriptors = _DESCRIPTORS.get(call.model.major)
    if descriptors is None or {left.dtype, right.dtype} != {torch.bfloat16}:
        call.ensure_cublas_workspace()
        return
    ends = call.argument(2, "offs")
    call.alloc_temp(arguments_size(left.shape[0] if ends is None else ends.shape[0]))
    call.alloc_temp(descriptors * _DESCRIPTOR * call.model.multi_processor_count)


def arguments_size(groups: int) -> int:
    """Bytes of what tells the kernel where its groups are: pointers, strides and sizes.

    >>> arguments_size(8), arguments_size(3)
    (480, 204)
    """
    even = groups + groups % 2
    return 3 * even * _POINTER + groups * _SIZES + 3 * groups * _POINTER


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_grouped_mm": Entry(
        product,
        "aten/src/ATen/native/cuda/GroupMM.cu, GroupedBlas.cpp",
        Basis.ESTIMATE,
    ),
}
