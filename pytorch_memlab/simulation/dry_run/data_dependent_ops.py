"""Ops whose results depend on values: what they return where there are none.

Every rule errs to the side of more memory: all elements of a mask are true, all elements are
distinct; a number that is read is zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..ops.data_dependence import DISTINCT, MASKS, TRUE, ZERO
from ..ops.sorting.unique import BOOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..machine.tensor_values import TensorValues

    Rule = Callable[[TensorValues, tuple[Any, ...], dict[str, Any]], Any]


def _all_nonzero(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    # Both devices write a row of indices for each dimension, and return them transposed.
    return values.make((tensor.dim(), tensor.numel()), torch.int64).t()


def _all_selected(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, mask = args
    count = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
    return values.make((count,), tensor.dtype)


def _all_distinct(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    _, inverse, counts = _options(args, kwargs, ("sorted", "return_inverse", "return_counts"))
    if tensor.dtype == torch.bool:
        return _unique(values, tensor, inverse, True, min(tensor.numel(), BOOLS))
    return _unique(values, tensor, inverse, counts, tensor.numel())


def _all_change(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    inverse, counts, dim = _options(args, kwargs, ("return_inverse", "return_counts", "dim"))
    if dim is not None:
        return _unique_slices(values, tensor, dim, inverse, counts)
    return _unique(values, tensor, inverse, counts, tensor.numel())


def _all_slices(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("sorted", "return_inverse", "return_counts")
    _, inverse, counts = _options(args[1:], kwargs, names)
    return _unique_slices(values, args[0], args[1], inverse, counts)


def _unique(
    values: TensorValues, tensor: torch.Tensor, inverse: Any, counts: Any, number: int
) -> Any:
    return (
        values.make((number,), tensor.dtype),
        values.make(tuple(tensor.shape) if inverse else (0,), torch.int64),
        values.make((number if counts else 0,), torch.int64),
    )


def _unique_slices(
    values: TensorValues, tensor: torch.Tensor, dim: int, inverse: Any, counts: Any
) -> Any:
    number = tensor.shape[dim]
    return (
        values.make(tuple(tensor.shape), tensor.dtype),
        values.make((number if inverse else 0,), torch.int64),
        values.make((number if counts else 0,), torch.int64),
    )


def _each_once(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    count = kwargs.get("output_size")
    return values.make((args[0].numel() if count is None else count,), torch.int64)


def _all_in_first_bin(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weights, least = _options(args, kwargs, ("weights", "minlength"))
    dtype = torch.int64 if weights is None else torch.float64
    return values.make((max(least or 0, 1),), dtype)


def _packed(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sequences, lengths, batch_first = args
    if not values.is_known(lengths):
        values.reads.count("aten::_pack_padded_sequence", *CALLED["aten::_pack_padded_sequence"])
        length = sequences.shape[1 if batch_first else 0]
        lengths = torch.full(lengths.shape, length)
    outline = torch.zeros(sequences.shape[:2])
    packed, sizes = torch.ops.aten._pack_padded_sequence.default(
        outline.unsqueeze(-1), lengths, batch_first
    )
    return values.make((packed.shape[0], *sequences.shape[2:]), sequences.dtype), sizes


def _unpacked(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return values.make(tuple(args[1]), args[0].dtype)


def _all_boxes(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return values.make((args[0].shape[0],), torch.int64)


def _options(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    """Arguments after the first, by name; None for those not given."""
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    return [given.get(name) for name in names]


CALLED = {
    "aten::nonzero": ("nonzero", TRUE),
    "aten::masked_select": ("masked_select", TRUE),
    "aten::_unique2": ("unique", DISTINCT),
    "aten::unique_consecutive": ("unique_consecutive", DISTINCT),
    "aten::unique_dim": ("unique", DISTINCT),
    "aten::unique_dim_consecutive": ("unique_consecutive", DISTINCT),
    "aten::repeat_interleave": ("repeat_interleave", "each element 1"),
    "aten::bincount": ("bincount", ZERO),
    "aten::_pack_padded_sequence": ("pack_padded_sequence", "every length the longest"),
    "torchvision::nms": ("torchvision.ops.nms", "every box taken as kept"),
}
"""What a program calls each read, and what a dry run assumes the values to be."""

RULES: dict[str, Rule] = {
    "aten::nonzero": _all_nonzero,
    "aten::masked_select": _all_selected,
    "aten::_unique2": _all_distinct,
    "aten::unique_consecutive": _all_change,
    "aten::unique_dim": _all_slices,
    "aten::unique_dim_consecutive": _all_slices,
    "aten::repeat_interleave": _each_once,
    "aten::bincount": _all_in_first_bin,
    "aten::_pack_padded_sequence": _packed,
    "aten::_pack_padded_sequence_backward": _unpacked,
    "torchvision::nms": _all_boxes,
}
"""By the op's name; only its overload that reads values, which takes the tensor first."""

COUNTS_ITSELF = frozenset({"aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward"})
"""Ops whose rule reads values of one argument only, which mostly are there."""

INDEXING = frozenset(
    {
        "aten::index",
        "aten::_unsafe_index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
    }
)
"""Ops whose second argument may hold masks among the indices."""


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
