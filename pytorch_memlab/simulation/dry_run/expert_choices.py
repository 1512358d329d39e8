"""The ops by which tokens choose their experts: Note [The load of experts]."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..machine.expert_routing import MOST_EXPERTS
from ..machine.op_arguments import Args, Kwargs
from ..machine.tensor_values import TensorValues
from ..ops.core.op_call import named_arguments
from ..ops.core.op_info import OpInfo

_CHOICES: Final = frozenset({"aten::topk", "aten::argmax", "aten::max"})


def choosable_experts(
    values: TensorValues, info: OpInfo, args: Args, kwargs: Kwargs, *, has_values: bool
) -> int:
    """The number of experts, where an op chooses among the scores of tokens; otherwise 0."""
    if values.routing is None or info.name not in _CHOICES:
        return 0
    if has_values and not values.routing.decides:
        return 0
    arguments = named_arguments(info.op, args, kwargs)
    scores, dim = arguments["self"], arguments.get("dim")
    if dim is None or not scores.numel() or not scores.is_floating_point():
        return 0
    if dim not in (-1, scores.dim() - 1):
        return 0
    experts = scores.shape[-1]
    is_choice = 1 < experts <= MOST_EXPERTS and arguments.get("largest", True)
    return experts if is_choice and arguments.get("k", 1) else 0


def choose_experts(
    values: TensorValues, experts: int, info: OpInfo, args: Args, kwargs: Kwargs, result: Any
) -> None:
    """Give the indices that such an op returns their values."""
    assert values.routing is not None
    arguments = named_arguments(info.op, args, kwargs)
    indices = result if isinstance(result, torch.Tensor) else result[-1]
    keeps_dim = arguments.get("keepdim", True)  # ``topk`` always does
    values.routing.choose(indices if keeps_dim else indices.unsqueeze(-1), experts)
    values.hold(indices.untyped_storage())
