"""Memory-efficient attention: ``transformers/cuda/attention.cu`` and ``attention_backward.cu``.

``mem_eff_attention/kernels/cutlassB.h`` in the same folder lists the backward kernels in the order
in which they are tried; ``kernel_backward.h`` tells their accumulators. Shared memory is
``sizeof(SharedStorage)`` of each, the largest of its variants, as nvcc lays it out (torch 2.13,
CUTLASS 3.8).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from ..core.op_call import FLOAT, OpCall
from ..core.registry import op
from .reference import (
    alloc_heads_behind_sequence,
    backward_reference,
    forward_reference,
    is_deterministic,
    warn_of_nondeterminism,
)

_FOLDER: Final = "aten/src/ATen/native/transformers/cuda"
_FORWARD: Final = torch.ops.aten._scaled_dot_product_efficient_attention.default
_BACKWARD: Final = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

_LOGSUMEXP_ALIGNMENT: Final = 32
"""Queries that the backward pass loads the logsumexp of at once: ``kAlignLSE`` in
``mem_eff_attention/kernel_forward.h``."""

_MOST_DROPPED_BATCHES: Final = 65_535
_MOST_IN_REGISTERS: Final = 128

_ANY: Final = 65_536
# The heuristic for splits of keys in ``_efficient_attention_backward`` of
# ``aten/src/ATen/native/transformers/cuda/attention_backward.cu``: 200 splits of all heads where
# gradients of keys need room, and one split of short keys from 256 blocks on.
_MOST_SPLITS: Final = 200
_ENOUGH_BLOCKS: Final = 256
_LOCK_BYTES: Final = 16


def _meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    *_others: Any,
    **_options: Any,
) -> tuple[Any, ...]:
    """PyTorch 2.4 has no meta kernel of it."""
    batch, _, queries, _ = query.shape
    if dropout_p and batch > _MOST_DROPPED_BATCHES:
        raise RuntimeError(
            "Efficient attention cannot produce valid seed and offset outputs when the batch size "
            f"exceeds ({_MOST_DROPPED_BATCHES})."
        )
    if attn_bias is not None and attn_bias.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    query, value = query.transpose(1, 2), value.transpose(1, 2)
    result, *others = results_like(query, value, batch, queries, compute_log_sumexp)
    return result.transpose(1, 2), *others


def results_like(
    query: torch.Tensor,
    value: torch.Tensor,
    sequences: int,
    longest: int,
    compute_log_sumexp: bool,
) -> tuple[torch.Tensor, ...]:
    """Tensors for the results of a forward pass, whose heads lie behind the sequence."""
    aligned = longest + -longest % _LOGSUMEXP_ALIGNMENT
    sums = sequences, query.shape[2], aligned * compute_log_sumexp
    return (
        query.new_empty((*query.shape[:3], value.shape[-1])),
        query.new_empty(sums, dtype=torch.float32),
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
    )


@op(
    "aten::_scaled_dot_product_efficient_attention",
    source=f"{_FOLDER}/attention.cu",
    reference=forward_reference(_FORWARD, _meta),
    meta=_meta,
    cpu_outputs=frozenset({2, 3}),
)
def memory(call: OpCall) -> None:
    """Allocate the results of a forward pass, and its sums where they do not fit in registers."""
    result, logsumexp = call.result[:2]
    call.alloc_outputs(result, logsumexp)
    query = call.args[0]
    size = max(query.shape[-1], result.shape[-1])
    if query.dtype != torch.float32 and size > _MOST_IN_REGISTERS:
        call.alloc_temp(result.numel() * FLOAT)


class Tile(NamedTuple):
    """A kernel."""

    most: int  # largest head dimension that it takes
    queries: int  # of a block
    keys: int  # of a block, and columns of a block of the query's gradient
    shared: int  # bytes of shared memory that it needs
    accumulates: bool = False  # whether gradients of key and value are accumulated in the workspace
    delta: bool = True  # whether the kernel itself sums result times gradient
    # capabilities that have it, all if empty; such a kernel has no dropout
    only: tuple[tuple[int, int], ...] = ()


_HALF_TILES: Final = {
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
_FLOAT_TILES: Final = {
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
    tiles = (_FLOAT_TILES if dtype == torch.float32 else _HALF_TILES)[generation]
    # A block may opt in for all but 1 KiB, which the system keeps from Ampere on.
    shared = gpu.shared_memory_per_multiprocessor - (1024 if gpu.major >= 8 else 0)
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


def _blocks(elements: int, size: int) -> int:
    return -(-elements // size)


@op(
    "aten::_scaled_dot_product_efficient_attention_backward",
    source=f"{_FOLDER}/attention_backward.cu",
    reference=backward_reference(_BACKWARD),
)
def _backward_memory(call: OpCall) -> None:
    alloc_heads_behind_sequence(call, 0)
    call.alloc_outputs()
    query, key = call.args[1:3]
    batch, _, queries, _ = query.shape
    value, result = (call.args[position].transpose(1, 2) for position in (3, 5))
    sizes = batch, queries, key.shape[2]
    alloc_workspace(
        call, query.transpose(1, 2), value, result, sizes, has_dropout=bool(call.args[9])
    )


def alloc_workspace(
    call: OpCall,
    query: torch.Tensor,  # [batch, queries, heads, head dimension], as the value and the result are
    value: torch.Tensor,  # its head dimension may be another
    result: torch.Tensor,  # of the forward pass
    sizes: tuple[int, int, int],  # number of sequences, and the most queries and keys of one
    *,
    has_dropout: bool,  # some kernels have none
) -> None:
    """Allocate the temporaries of a backward pass."""
    warn_of_nondeterminism("Memory Efficient attention")
    batch, queries, heads, size = query.shape
    head = size, value.shape[-1]
    tile = tile_of(call.model, query.dtype, max(head), has_dropout)
    if tile.delta:
        call.alloc_temp(batch * heads * queries * FLOAT)
    else:
        _alloc_delta(call, result)
    nbytes = workspace(tile, (sizes[0], heads, *sizes[1:]), head, split=not is_deterministic())
    if nbytes:
        call.alloc_temp(nbytes)


def _alloc_delta(call: OpCall, result: torch.Tensor) -> None:
    """Result times gradient in float32, summed over the head dimension, heads before queries."""
    batch, queries, heads, _ = result.shape
    copies = 0 if result.dtype == torch.float32 else 2
    wide = [call.alloc_temp(result.numel() * FLOAT) for _ in range(copies)]
    product = call.alloc_temp(result.numel() * FLOAT)
    sums = call.alloc_temp(batch * heads * queries * FLOAT)
    if heads > 1 and queries > 1:
        call.alloc_temp(batch * heads * queries * FLOAT)
        call.free_temp(sums)
    for allocation in (product, *wide):
        call.free_temp(allocation)
