"""Ops on sparse tensors without values: as many elements as their arguments have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..machine.unsupported import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..machine.tensor_values import TensorValues

    Rule = Callable[[TensorValues, tuple[Any, ...], dict[str, Any]], Any]


def _same_elements(
    tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return _like(tensor_values, args[0], is_coalesced=args[0].is_coalesced())


def _all_distinct(
    tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    tensor_values.reads.count("aten::_coalesce")
    return _like(tensor_values, args[0], is_coalesced=True)


def _written(tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if target.layout is torch.strided:
        tensor_values.forget_values(target)
    return target


def _dense(tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor_values.make(tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype)


def _masked(tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = args[1]._values()
    return _assembled(
        args[1],
        args[1]._indices().clone(),
        tensor_values.make(tuple(values.shape), args[0].dtype),
        True,
    )


def _product(tensor_values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, second = args[-2:]
    if torch.strided not in (first.layout, second.layout):
        raise unsupported("a product of two sparse matrices without values")
    return tensor_values.make((first.shape[0], second.shape[1]), first.dtype)


def _like(tensor_values: TensorValues, tensor: torch.Tensor, is_coalesced: bool) -> torch.Tensor:
    indices, values = tensor._indices(), tensor._values()
    return _assembled(
        tensor,
        tensor_values.make(tuple(indices.shape), indices.dtype),
        tensor_values.make(tuple(values.shape), values.dtype),
        is_coalesced,
    )


def _assembled(
    like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, is_coalesced: bool
) -> torch.Tensor:
    assembled: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
        like.sparse_dim(),
        like.dense_dim(),
        list(like.shape),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=torch.device("cpu"),
        is_coalesced=is_coalesced,
    )
    return assembled


SPARSE_RULES: dict[str, Rule] = {
    "aten::_coalesce": _all_distinct,
    "aten::_sparse_addmm": _product,
    "aten::_to_dense": _dense,
    "aten::add_": _written,
    "aten::addmm": _product,
    "aten::clone": _same_elements,
    "aten::copy_": _written,
    "aten::mm": _product,
    "aten::mul_": _written,
    "aten::sparse_mask": _masked,
    "aten::zero_": _written,
}
"""By the op's name; sparse tensors go through any other op as they are, values and all."""
