"""Drivers of cuSOLVER, which the CPU's kernels refuse, and those of the CPU, which CUDA refuses."""

from __future__ import annotations

from typing import Final

import torch

from ..core.memory_formats import laid_out_by
from ..core.registry import define

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


def _check_driver_of_least_squares(driver: str | None) -> None:
    if (driver or _OF_LEAST_SQUARES).lower() != _OF_LEAST_SQUARES:
        raise RuntimeError(
            "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA"
        )


def _least_squares(
    matrix: torch.Tensor,
    right: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Solutions of systems that are assumed to have full rank."""
    _check_driver_of_least_squares(driver)
    results: tuple[torch.Tensor, ...] = _aten.linalg_lstsq.default(
        matrix, right, rcond, driver=_OF_LEAST_SQUARES
    )
    return results


def _outputs_of_least_squares(
    matrix: torch.Tensor,
    right: torch.Tensor,
    _rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Solutions in the first rows of what the driver works in, which residuals are made of."""
    _check_driver_of_least_squares(driver)
    rows, columns = matrix.shape[-2:]
    is_vector = right.dim() == 1 or right.shape == matrix.shape[:-1]
    sides = right.unsqueeze(-1) if is_vector else right
    if sides.shape[-2] != rows:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    batch = torch.broadcast_shapes(matrix.shape[:-2], sides.shape[:-2])
    worked_in = matrix.new_empty(*batch, sides.shape[-1], max(rows, columns)).mT
    solution = worked_in[..., :columns, :]
    has_residuals = rows > columns
    residuals = matrix.new_empty(
        (*batch, sides.shape[-1]) if has_residuals else 0, dtype=matrix.dtype.to_real()
    )
    rank = matrix.new_empty(0, dtype=torch.int64)
    singular_values = residuals.new_empty(0)
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, singular_values


def _orthogonal_factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of ``geqrf``: both triangles in columns, and the scales of the reflectors."""
    *batch, rows, columns = matrix.shape
    return matrix.new_empty(*batch, columns, rows).mT, matrix.new_empty(*batch, min(rows, columns))


def _cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """On a GPU a factor that is singular gives infinities, as the equations have them."""
    try:
        return torch.cholesky_inverse(factor, upper)
    except RuntimeError:
        if factor.dim() < 2 or bool(factor.diagonal(dim1=-2, dim2=-1).all()):
            raise
        unit = torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape)
        return torch.cholesky_solve(unit, factor, upper)


define("aten::cholesky_inverse", reference=_cholesky_inverse)
define("aten::_linalg_svd", meta=_svd, reference=laid_out_by(_svd, _svd))
define(
    "aten::linalg_eig", reference=laid_out_by(_aten.linalg_eig.default, _aten.linalg_eig.default)
)
define("aten::linalg_lstsq", reference=_least_squares, meta=_outputs_of_least_squares)
define("aten::geqrf", meta=_orthogonal_factors)
