"""Weight norm: the type of its norms."""

from __future__ import annotations

from typing import Any

import torch

from ..memory_formats import acc_type
from ..registry import define


def _wide_norms(
    args: tuple[Any, ...], result: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """With norms in the type that CUDA sums in; torch 2.4's meta kernel takes the weight's."""
    weight, norms = result
    return weight, norms.to(acc_type(args[0].dtype))


define("aten::_weight_norm_interface", corrects_meta=_wide_norms)
