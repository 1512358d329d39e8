"""LU factors without an exchange of rows, which the CPU's kernels refuse.

``aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp``: the pivots are then the rows' own
numbers, and a pivot that is zero is not looked for further down.
"""

from __future__ import annotations

from typing import Final

import torch

from ..core.registry import define

_aten: Final = torch.ops.aten


def lu_factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors in one matrix, the rows' numbers, and the first zero pivot from 1 on or 0.

    >>> matrix = torch.tensor([[2.0, 1.0], [4.0, 5.0]])
    >>> [part.tolist() for part in lu_factors(matrix)]
    [[[2.0, 1.0], [2.0, 3.0]], [1, 2], 0]
    """
    *batch, rows, columns = matrix.shape
    factors = torch.empty(*batch, columns, rows, dtype=matrix.dtype).mT.copy_(matrix)
    info = torch.zeros(batch, dtype=torch.int32)
    count = min(rows, columns)
    for step in range(count):
        pivot = factors[..., step, step]
        info = torch.where((info == 0) & (pivot == 0), step + 1, info)
        divisor = torch.where(pivot == 0, torch.ones_like(pivot), pivot)  # as LAPACK's getf2
        factors[..., step + 1 :, step] /= divisor.unsqueeze(-1)
        factors[..., step + 1 :, step + 1 :] -= (
            factors[..., step + 1 :, step, None] * factors[..., step, None, step + 1 :]
        )
    pivots = torch.arange(1, count + 1, dtype=torch.int32).expand(*batch, count).contiguous()
    return factors, pivots, info.to(torch.int32)


def _factor(
    matrix: torch.Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, ...]:
    if pivot:
        return tuple(_aten.linalg_lu_factor_ex.default(matrix, check_errors=check_errors))
    factors, pivots, info = lu_factors(matrix)
    if check_errors:
        _aten._linalg_check_errors.default(
            info, "torch.linalg.lu_factor_ex", is_matrix=info.dim() == 0
        )
    return factors, pivots, info


def _split(matrix: torch.Tensor, *, pivot: bool = True) -> tuple[torch.Tensor, ...]:
    if pivot:
        return tuple(_aten.linalg_lu.default(matrix))
    factors, pivots, _ = lu_factors(matrix)
    return tuple(_aten.lu_unpack.default(factors, pivots, True, False))


define("aten::linalg_lu_factor_ex", reference=_factor)
define("aten::linalg_lu", reference=_split)
