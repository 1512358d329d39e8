"""``torch.nn.functional.grouped_mm``: matrices of many experts multiplied in one call."""

from __future__ import annotations

import torch

_ALIGNMENT = 16
"""Bytes that the rows of the result are aligned to (aten/src/ATen/native/GroupedMMUtils.h)."""


def multiply(*args: torch.Tensor | None) -> torch.Tensor:
    """The product, as the host computes it: its kernel returns what CUDA's does."""
    product: torch.Tensor = torch.ops.aten._grouped_mm.default(*args)
    return product


def shape_of_product(
    left: torch.Tensor,
    right: torch.Tensor,
    ends: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product's shape, of all dtypes: PyTorch's own meta kernel refuses all but bfloat16.

    >>> left, right = torch.empty(10, 8, device="meta"), torch.empty(2, 6, 8, device="meta").mT
    >>> product = shape_of_product(left, right, torch.empty(2, device="meta"))
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
