"""Ops that return a number or a truth value, which depends on values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..data_dependence import ZERO, DataDependence
from ..registry import define

if TYPE_CHECKING:
    from ...machine.tensor_values import TensorValues


def _scalar(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if tensor.dtype is torch.bool and values.answers:
        return values.answers.pop()
    if values.is_readable(tensor):
        return torch.ops.aten._local_scalar_dense.default(tensor)
    return torch.zeros((), dtype=tensor.dtype).item()


def _equal(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].shape == args[1].shape


define(
    "aten::_local_scalar_dense",
    data_dependence=DataDependence("Tensor.item", ZERO, _scalar),
)
define("aten::equal", data_dependence=DataDependence("equal", "equal", _equal))
define("aten::allclose", data_dependence=DataDependence("allclose", "equal", _equal))
