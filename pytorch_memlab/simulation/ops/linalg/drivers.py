"""Drivers of cuSOLVER, which the CPU's kernels refuse, and those of the CPU, which CUDA refuses."""

from __future__ import annotations

from typing import Final

import torch

from ..memory_formats import laid_out_by
from ..registry import define

_aten: Final = torch.ops.aten
_OF_SVD: Final = (None, "gesvd", "gesvdj", "gesvda")
_OF_LEAST_SQUARES: Final = "gels"


def _svd(
    matrix: torch.Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, ...]:
    if driver not in _OF_SVD:
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. "
            "Drivers are gesvd, gesvdj and gesvda"
        )
    factors: tuple[torch.Tensor, ...] = _aten._linalg_svd.default(matrix, full_matrices, compute_uv)
    return factors


def _least_squares(
    matrix: torch.Tensor,
    right: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Solutions of systems that are assumed to have full rank."""
    if (driver or _OF_LEAST_SQUARES).lower() != _OF_LEAST_SQUARES:
        raise RuntimeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels) for tensors of a GPU"
        )
    found: tuple[torch.Tensor, ...] = _aten.linalg_lstsq.default(
        matrix, right, rcond, driver=_OF_LEAST_SQUARES
    )
    return found


define("aten::_linalg_svd", meta=_svd, reference=laid_out_by(_svd, _svd))
define(
    "aten::linalg_eig", reference=laid_out_by(_aten.linalg_eig.default, _aten.linalg_eig.default)
)
define("aten::linalg_lstsq", values=_least_squares)
