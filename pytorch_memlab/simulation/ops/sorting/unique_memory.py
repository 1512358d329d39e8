"""Unique elements: sorted copies, and results in memory as large as the input's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .. import cub
from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch

_INDEX: Final = 8


def unique(launch: Launch) -> None:
    """``_unique2`` and ``_unique``: elements are sorted first, those of a mask are counted."""
    source: torch.Tensor = launch.args[0]
    if not source.numel():
        return
    launch.contiguous(source)
    if source.dtype == torch.bool:
        launch.borrow(4)
        launch.pass_by(cub.reduce(launch.gpu.model, source.numel(), 4))
        result, inverse, *counts = launch.result
        launch.made(result, *counts, inverse)
        return
    inverse = launch.argument(2, "return_inverse", False)
    launch.copy(source)
    _sort(launch, source, with_order=inverse)
    counts = launch.argument(3, "return_counts", False)
    _compare(launch, is_sorted=True, inverse=inverse, counts=counts)


def unique_consecutive(launch: Launch) -> None:
    """``unique_consecutive``: elements are compared as they lie."""
    source: torch.Tensor = launch.args[0]
    inverse = launch.argument(1, "return_inverse", False)
    counts = launch.argument(2, "return_counts", False)
    dim = launch.argument(3, "dim")
    if dim is not None:
        _compare_rows(launch, dim, inverse=inverse, counts=counts)
    elif source.numel():
        launch.contiguous(source)
        _compare(launch, is_sorted=False, inverse=inverse, counts=counts)


def unique_rows(launch: Launch) -> None:
    """``unique_dim``: rows are sorted by their numbers."""
    inverse = launch.argument(3, "return_inverse", False)
    counts = launch.argument(4, "return_counts", False)
    _compare_rows(launch, launch.args[1], inverse=inverse, counts=counts)


def unique_consecutive_rows(launch: Launch) -> None:
    """``unique_dim_consecutive``: rows are compared as they lie."""
    inverse = launch.argument(2, "return_inverse", False)
    counts = launch.argument(3, "return_counts", False)
    _compare_rows(launch, launch.args[1], inverse=inverse, counts=counts)


def _sort(launch: Launch, source: torch.Tensor, *, with_order: bool) -> None:
    """Take the order of the sorted elements if it is needed, and pass by what sorting takes."""
    count, width = source.numel(), source.element_size()
    is_float = source.is_floating_point()
    if not with_order:
        launch.pass_by(cub.radix_sort(launch.gpu.model, count, width, is_float=is_float))
        return
    numbers = launch.borrow(count * _INDEX)
    launch.borrow(count * _INDEX)
    launch.pass_by(cub.radix_sort(launch.gpu.model, count, width, _INDEX))
    launch.give_back(numbers)


def _compare(launch: Launch, *, is_sorted: bool, inverse: bool, counts: bool) -> None:
    """Make the results, of full length, and pass by what finding them takes: ``UniqueCub.cu``."""
    source: torch.Tensor = launch.args[0]
    count, width = source.numel(), source.element_size()
    if inverse:
        launch.made(launch.result[1])
        with launch.scope():
            launch.borrow(count * (_INDEX if is_sorted else 4))
            launch.borrow(cub.scan(count, 4))
    launch.made(launch.result[0])
    with launch.scope():
        launch.borrow(_INDEX)
        if counts:
            launch.made(launch.result[2])
            launch.borrow(cub.run_lengths(count, width))
        else:
            launch.borrow(cub.select(count, width))


def _compare_rows(launch: Launch, dim: int, *, inverse: bool, counts: bool) -> None:
    """Rows side by side, and their numbers; what Thrust takes to sort and compare is not known."""
    source: torch.Tensor = launch.args[0]
    if not source.numel():
        return
    launch.unknown = "memory of Thrust"
    launch.contiguous(source.moveaxis(dim, 0))
    rows = source.shape[dim]
    launch.borrow(rows * _INDEX)
    if inverse:
        with launch.scope():
            launch.borrow(rows * _INDEX)
            launch.made(launch.result[1])
    if counts:
        with launch.scope():
            launch.borrow((rows + 1) * _INDEX)
            launch.made(launch.result[2])
    launch.made(launch.result[0])


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
