"""Unique elements: CUDA returns them in memory that all elements would fill.

``compute_unique`` of ``aten/src/ATen/native/cuda/UniqueCub.cu`` makes results for the case that
all are distinct, and shortens them when it knows how many are. Those of rows are as large as they
show (``Unique.cu``).
"""

from __future__ import annotations

from typing import Final

import torch

BOOLS: Final = 2
"""Distinct elements that CUDA has room for when it looks for those of a mask."""

_aten: Final = torch.ops.aten


def distinct(
    tensor: torch.Tensor,
    is_sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_unique2`` computed on the host."""
    is_mask = tensor.dtype == torch.bool
    wants_counts = return_counts or is_mask
    found, inverse, counts = _aten._unique2.default(tensor, True, return_inverse, wants_counts)
    return _shortened(tensor, found, inverse, counts, BOOLS if is_mask else tensor.numel())


def distinct_without_counts(
    tensor: torch.Tensor, is_sorted: bool = True, return_inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_unique`` computed on the host: see ``distinct``."""
    return distinct(tensor, is_sorted, return_inverse)[:2]


def consecutive(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``unique_consecutive`` computed on the host."""
    if dim is not None:
        return consecutive_rows(tensor, dim, return_inverse, return_counts)
    found, inverse, counts = _aten.unique_consecutive.default(tensor, return_inverse, return_counts)
    return _shortened(tensor, found, inverse, counts, tensor.numel())


def rows(
    tensor: torch.Tensor,
    dim: int,
    is_sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``unique_dim`` computed on the host."""
    found = _aten.unique_dim.default(tensor, dim, True, return_inverse, return_counts)
    return _wanted(found, return_inverse, return_counts)


def consecutive_rows(
    tensor: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``unique_dim_consecutive`` computed on the host: see ``rows``."""
    found = _aten.unique_dim_consecutive.default(tensor, dim, return_inverse, return_counts)
    return _wanted(found, return_inverse, return_counts)


def _wanted(
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor], inverse: bool, counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Results of their own size, without elements where CUDA makes none."""
    result, of_rows, of_results = found
    return (
        result,
        of_rows if inverse else of_rows.new_empty(0),
        of_results.clone() if counts else of_results.new_empty(0),
    )


def _shortened(
    tensor: torch.Tensor,
    found: torch.Tensor,
    inverse: torch.Tensor,
    counts: torch.Tensor,
    room: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not tensor.numel():
        return found, inverse, counts
    return _in_room(found, room), inverse, _in_room(counts, room) if counts.numel() else counts


def _in_room(result: torch.Tensor, room: int) -> torch.Tensor:
    """A result in memory for more elements."""
    count = result.numel()
    whole = result.new_empty(room)
    whole[:count] = result
    return whole.resize_(count)
