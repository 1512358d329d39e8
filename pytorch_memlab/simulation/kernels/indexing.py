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

_UNSORTED = 3072
"""Most indices for which the gradient of an embedding is summed without sorting them."""


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
    launch.borrow(_sort_bytes(prod(shape), nbytes))


def _padded(indices: list[torch.Tensor | None], count: int) -> list[torch.Tensor | None]:
    return [*indices, *[None] * (count - len(indices))]


def _is_on_host(launch: Launch, index: torch.Tensor) -> bool:
    return launch.machine.placements.find(index) is None


def embedding_gradient(launch: Launch) -> None:
    """``embedding_dense_backward``: many indices are sorted, and partial sums kept in float."""
    gradient, indices = launch.args[:2]
    count = indices.numel()
    if count <= _UNSORTED and not launch.argument(4, "scale_grad_by_freq", False):
        return
    nbytes = count * indices.element_size()
    for _order in range(2):
        launch.borrow(nbytes)
    scratch = [launch.borrow(nbytes), launch.borrow(_sort_bytes(count, nbytes))]
    for placement in reversed(scratch):
        launch.give_back(placement)
    for _segments in range(4):
        launch.borrow(nbytes)
    if gradient.dtype in (torch.float16, torch.bfloat16):
        launch.borrow(gradient.numel() * 4)


def _sort_bytes(count: int, nbytes: int) -> int:
    """What a radix sort of indices and their order takes: estimated beyond one tile."""
    return 1 if count <= _ONE_TILE else 2 * nbytes
