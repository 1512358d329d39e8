"""Memory-efficient attention's backward kernels: which one runs, and its workspace.

``transformers/cuda/mem_eff_attention/kernels/cutlassB.h`` below ``aten/src/ATen/native`` lists the
kernels in the order in which they are tried; ``kernel_backward.h`` in the same folder tells their
accumulators. Shared memory is ``sizeof(SharedStorage)`` of each, the largest of its variants, as
nvcc lays it out (torch 2.13, CUTLASS 3.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ...hardware.decisions import decision

if TYPE_CHECKING:
    from ...hardware.gpu import GPU

_KIB: Final = 1024
_ANY: Final = 65_536
_MOST_SPLITS: Final = 200
_ENOUGH_BLOCKS: Final = 256
_LOCK_BYTES: Final = 16


class Tile(NamedTuple):
    """A kernel.

    Args:
        most: largest head dimension that it takes.
        queries: of a block.
        keys: of a block, and columns of a block of the query's gradient.
        shared: bytes of shared memory that it needs.
        accumulates: whether gradients of key and value are accumulated in the workspace.
        delta: whether the kernel itself sums result times gradient.
        only: capabilities that have it, all if empty; such a kernel has no dropout.
    """

    most: int
    queries: int
    keys: int
    shared: int
    accumulates: bool = False
    delta: bool = True
    only: tuple[tuple[int, int], ...] = ()


_HALF: Final = {
    80: (
        Tile(64, 64, 64, 52480),
        Tile(96, 128, 64, 91648, only=((8, 6), (8, 9))),
        Tile(128, 128, 128, 162304),
        Tile(128, 64, 64, 34048, accumulates=True),
        Tile(_ANY, 128, 64, 60928, accumulates=True),
    ),
    75: (
        Tile(64, 64, 64, 27904),
        Tile(128, 128, 64, 54784),
        Tile(_ANY, 128, 64, 54784, accumulates=True),
    ),
    70: (
        Tile(64, 64, 64, 25088),
        Tile(128, 128, 64, 50176),
        Tile(_ANY, 128, 64, 50176, accumulates=True, delta=False),
    ),
}
_FLOAT: Final = {
    80: (
        Tile(64, 64, 64, 53504, delta=False),
        Tile(128, 128, 64, 121344, delta=False),
        Tile(128, 64, 64, 67840, delta=False),
        Tile(_ANY, 128, 64, 121344, delta=False),
        Tile(_ANY, 64, 64, 67840, delta=False),
    ),
    75: (Tile(_ANY, 64, 64, 37120, delta=False),),
    70: (Tile(_ANY, 64, 64, 37120, delta=False),),
}


@decision
def tile_of(gpu: GPU, dtype: torch.dtype, size: int, has_dropout: bool) -> Tile:
    """The kernel that a backward pass runs."""
    capability = (gpu.major, gpu.minor)
    generation = 80 if gpu.major >= 8 else 75 if capability >= (7, 5) else 70
    tiles = (_FLOAT if dtype == torch.float32 else _HALF)[generation]
    shared = _shared_memory(gpu)
    return next(
        tile
        for tile in tiles
        if size <= tile.most
        and tile.shared <= shared
        and (not tile.only or (capability in tile.only and not has_dropout))
    )


def workspace(
    tile: Tile, sizes: tuple[int, int, int, int], head: tuple[int, int], split: bool
) -> int:
    """The result of ``workspace_size`` of a kernel's parameters."""
    batch, heads, queries, keys = sizes
    of_query = _blocks(queries, tile.queries) * _blocks(head[0], tile.keys)
    elements = of_query * (_LOCK_BYTES // 4 + tile.queries * tile.keys)
    if tile.accumulates:
        splits = _splits(tile, batch * heads, keys) if split else 1
        for size in head:
            elements += splits * tile.keys * _blocks(size, tile.queries) * tile.queries
    return batch * heads * _blocks(elements, 4) * 4 * 4


def _splits(tile: Tile, blocks: int, keys: int) -> int:
    splits = _blocks(keys, tile.keys)
    if blocks >= _ENOUGH_BLOCKS and keys <= 2 * tile.keys:
        splits = 1
    return max(1, min(splits, _MOST_SPLITS // blocks))


def _shared_memory(gpu: GPU) -> int:
    """Bytes that a block may opt in for: from Ampere on the system keeps 1 KiB."""
    kept = _KIB if gpu.major >= 8 else 0
    return gpu.shared_memory_per_multiprocessor - kept


def _blocks(elements: int, size: int) -> int:
    return -(-elements // size)
