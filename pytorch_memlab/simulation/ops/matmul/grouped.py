"""``torch.nn.functional.grouped_mm``: matrices of many experts multiplied in one call.

Its memory is pointers and sizes of the groups, and CUTLASS's descriptors of tensors.
"""

from __future__ import annotations

from typing import Final

import torch

from ..op_call import OpCall
from ..registry import estimated

_ALIGNMENT: Final = 16
"""Bytes that the rows of the result are aligned to (aten/src/ATen/native/GroupedMMUtils.h)."""

_POINTER: Final = 8
_SIZES: Final = 12
"""Bytes of a group's sizes: three integers of 32 bits."""

_DESCRIPTOR: Final = 128
"""Bytes of a ``CUtensorMap``."""

_DESCRIPTORS: Final = {9: 5, 10: 4}
"""By major compute capability, how many each multiprocessor has: two operands, and two or three for
the result (CUTLASS: ``get_workspace_size`` of the mainloops and epilogues of pointer arrays)."""


def grouped_mm_meta(
    left: torch.Tensor,
    right: torch.Tensor,
    ends: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Of all dtypes: PyTorch's own meta kernel refuses all but bfloat16.

    >>> left, right = torch.empty(10, 8, device="meta"), torch.empty(2, 6, 8, device="meta").mT
    >>> product = grouped_mm_meta(left, right, torch.empty(2, device="meta"))
    >>> product.shape, product.stride()
    (torch.Size([10, 6]), (8, 1))
    """
    if (left.dim() == 3 or right.dim() == 3) and left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    for matrix in (left, right):
        _check_strides(matrix)
    dtype = dtype or left.dtype
    rows, columns = left.shape[-2], right.shape[-1]
    if left.dim() == right.dim():
        groups = left.shape[0] if ends is None else ends.shape[0]
        size: tuple[int, ...] = (groups, rows, columns)
    else:
        size = (rows, columns)
    padded = -(-columns * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT // dtype.itemsize
    stride = (rows * padded, padded, 1)[-len(size) :]
    return torch.empty_strided(size, stride, dtype=dtype, device=left.device)


def _check_strides(matrix: torch.Tensor) -> None:
    """Refuse what the kernels cannot read, such as the expanded gradient of a sum."""
    for along, across in ((-2, -1), (-1, -2)):
        step = matrix.stride(across)
        if matrix.stride(along) == 1 and step >= max(1, matrix.shape[along]):
            if step * matrix.element_size() % _ALIGNMENT:
                raise RuntimeError("strides should be multiple of 16 bytes")
            return
    raise RuntimeError(
        f"Invalid strides/sizes, got {list(matrix.stride())} for strides and "
        f"{list(matrix.shape)} for sizes"
    )


@estimated(
    "aten::_grouped_mm",
    source="aten/src/ATen/native/cuda/GroupMM.cu, GroupedBlas.cpp",
    meta=grouped_mm_meta,
)
def _memory(call: OpCall) -> None:
    """One kernel for bfloat16 on GPUs that have it, otherwise a product per group."""
    call.alloc_outputs()
    left: torch.Tensor = call.args[0]
    right: torch.Tensor = call.args[1]
    descriptors = _DESCRIPTORS.get(call.model.major)
    if descriptors is None or {left.dtype, right.dtype} != {torch.bfloat16}:
        call.ensure_cublas_workspace()
        return
    ends = call.argument("offs")
    call.alloc_temp(arguments_size(left.shape[0] if ends is None else ends.shape[0]))
    call.alloc_temp(descriptors * _DESCRIPTOR * call.model.multi_processor_count)


def arguments_size(groups: int) -> int:
    """Bytes of what tells the kernel where its groups are: pointers, strides and sizes.

    >>> arguments_size(8), arguments_size(3)
    (480, 204)
    """
    even = groups + groups % 2
    return 3 * even * _POINTER + groups * _SIZES + 3 * groups * _POINTER
