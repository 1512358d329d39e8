"""Indexing: copies of indices from the host, and the sort behind an accumulating ``index_put``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .launch import Launch

_INDEX = 8
"""Bytes of an index."""

_ONE_TILE = 2048
"""Most indices for which a recording shows a sort within one block of threads."""


def read(launch: Launch) -> None:
    """``index``: indices of the host are copied to the GPU first."""
    for index in launch.args[1]:
        if index is not None and _is_on_host(launch, index):
            launch.borrow(index.numel() * _INDEX)


def write(launch: Launch) -> None:
    """``index_put``: with ``accumulate`` the indices are made linear, and sorted."""
    if not launch.argument(3, "accumulate", False):
        read(launch)
        return
    target, indices, values = launch.args[:3]
    given = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    nbytes = prod(shape) * _INDEX
    for position, index in enumerate(given):
        if _is_on_host(launch, index):
            offsets = launch.borrow(nbytes)
        else:
            wrapped = launch.borrow(nbytes)
            offsets = launch.borrow(nbytes)
            launch.give_back(wrapped)
        if position > 0:
            launch.give_back(offsets)
    elements = prod(shape) * prod(
        size
        for size, index in zip(target.shape, _padded(indices, target.dim()), strict=True)
        if index is None
    )
    if values.numel() != elements or not values.is_contiguous():
        launch.borrow(elements * values.element_size())
    for _sorted_order_and_range in range(3):
        launch.borrow(nbytes)
    launch.borrow(1 if prod(shape) <= _ONE_TILE else 2 * nbytes)


def _padded(indices: list[torch.Tensor | None], count: int) -> list[torch.Tensor | None]:
    return [*indices, *[None] * (count - len(indices))]


def _is_on_host(launch: Launch, index: torch.Tensor) -> bool:
    return launch.machine.placements.find(index) is None
