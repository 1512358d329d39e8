"""Unique elements: sorted copies, and results in memory as large as the input's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .. import cub
from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_INDEX: Final = 8


def unique(call: OpCall) -> None:
    """``_unique2`` and ``_unique``: elements are sorted first, those of a mask are counted."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.alloc_contiguous(source)
    if source.dtype == torch.bool:
        call.alloc_temp(4)
        call.alloc_and_free(cub.reduce(call.model, source.numel(), 4))
        result, inverse, *counts = call.result
        call.alloc_outputs(result, *counts, inverse)
        return
    inverse = call.argument(2, "return_inverse", False)
    call.alloc_copy(source)
    _sort(call, source, with_order=inverse)
    counts = call.argument(3, "return_counts", False)
    _compare(call, is_sorted=True, inverse=inverse, counts=counts)


def unique_consecutive(call: OpCall) -> None:
    """``unique_consecutive``: elements are compared as they lie."""
    source: torch.Tensor = call.args[0]
    inverse = call.argument(1, "return_inverse", False)
    counts = call.argument(2, "return_counts", False)
    dim = call.argument(3, "dim")
    if dim is not None:
        _compare_rows(call, dim, inverse=inverse, counts=counts)
    elif source.numel():
        call.alloc_contiguous(source)
        _compare(call, is_sorted=False, inverse=inverse, counts=counts)


def unique_rows(call: OpCall) -> None:
    """``unique_dim``: rows are sorted by their numbers."""
    inverse = call.argument(3, "return_inverse", False)
    counts = call.argument(4, "return_counts", False)
    _compare_rows(call, call.args[1], inverse=inverse, counts=counts)


def unique_consecutive_rows(call: OpCall) -> None:
    """``unique_dim_consecutive``: rows are compared as they lie."""
    inverse = call.argument(2, "return_inverse", False)
    counts = call.argument(3, "return_counts", False)
    _compare_rows(call, call.args[1], inverse=inverse, counts=counts)


def _sort(call: OpCall, source: torch.Tensor, *, with_order: bool) -> None:
    """Take the order of the sorted elements if it is needed, and pass by what sorting takes."""
    count, width = source.numel(), source.element_size()
    is_float = source.is_floating_point()
    if not with_order:
        call.alloc_and_free(cub.radix_sort(call.model, count, width, is_float=is_float))
        return
    numbers = call.alloc_temp(count * _INDEX)
    call.alloc_temp(count * _INDEX)
    call.alloc_and_free(cub.radix_sort(call.model, count, width, _INDEX))
    call.free_temp(numbers)


def _compare(call: OpCall, *, is_sorted: bool, inverse: bool, counts: bool) -> None:
    """Make the results, of full length, and pass by what finding them takes: ``UniqueCub.cu``."""
    source: torch.Tensor = call.args[0]
    count, width = source.numel(), source.element_size()
    if inverse:
        call.alloc_outputs(call.result[1])
        with call.scope():
            call.alloc_temp(count * (_INDEX if is_sorted else 4))
            call.alloc_temp(cub.scan(count, 4))
    call.alloc_outputs(call.result[0])
    with call.scope():
        call.alloc_temp(_INDEX)
        if counts:
            call.alloc_outputs(call.result[2])
            call.alloc_temp(cub.run_lengths(count, width))
        else:
            call.alloc_temp(cub.select(count, width))


def _compare_rows(call: OpCall, dim: int, *, inverse: bool, counts: bool) -> None:
    """Rows side by side, and their numbers; what Thrust takes to sort and compare is not known."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.unknown_workspace = "memory of Thrust"
    call.alloc_contiguous(source.moveaxis(dim, 0))
    rows = source.shape[dim]
    call.alloc_temp(rows * _INDEX)
    if inverse:
        with call.scope():
            call.alloc_temp(rows * _INDEX)
            call.alloc_outputs(call.result[1])
    if counts:
        with call.scope():
            call.alloc_temp((rows + 1) * _INDEX)
            call.alloc_outputs(call.result[2])
    call.alloc_outputs(call.result[0])


_UNIQUE: Final = "aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_unique2": Entry(nothing, _UNIQUE, Basis.ESTIMATE, make=unique),
    "aten::_unique": Entry(nothing, _UNIQUE, Basis.ESTIMATE, make=unique),
    "aten::unique_consecutive": Entry(nothing, _UNIQUE, Basis.ESTIMATE, make=unique_consecutive),
    "aten::unique_dim": Entry(nothing, _UNIQUE, Basis.ESTIMATE, make=unique_rows),
    "aten::unique_dim_consecutive": Entry(
        nothing, _UNIQUE, Basis.ESTIMATE, make=unique_consecutive_rows
    ),
}
