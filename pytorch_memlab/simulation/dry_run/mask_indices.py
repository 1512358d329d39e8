"""Masks among the indices of an op, of which a dry run has no values."""

from __future__ import annotations

import torch

from ..machine.tensor_values import TensorValues
from ..ops.data_dependence import MASKS


def with_indices(
    values: TensorValues, name: str, indices: list[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Masks of an indexing op replaced by indices without values, of as many as are selected."""
    plain: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            plain.append(index)
            continue
        if values.is_known(index):
            count = int(torch.count_nonzero(index))
        else:
            MASKS.count(values, name)
            count = index.numel()
        selected = torch.empty(count, dtype=torch.int64, device="meta")
        plain.extend([selected] * index.dim())
    return plain
