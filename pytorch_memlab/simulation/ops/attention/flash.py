"""Flash attention: ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

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

_SOURCE: Final = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_FORWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention.default
_BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
HAS_RNG_STATE: Final = any(result.name == "rng_state" for result in _FORWARD._schema.returns)
"""True if the random state lies on the GPU; before, it is a seed on the CPU."""

RANDOM_STATE: Final = (2 * 8, 8)
"""Bytes of the random state, and of what is returned beside it."""

ROWS: Final = 128
"""Queries that the accumulators are a multiple of: ``seqlen_q_rounded`` in ``mha_bwd``."""

_MOST_SPLITS: Final = 128
"""Of the keys, as ``set_params_splitkv`` asks ``num_splits_heuristic`` for."""


def _meta(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_others: Any, **_options: Any
) -> tuple[Any, ...]:
    """PyTorch 2.4 has no meta kernel of it."""
    dtype = torch.uint64 if HAS_RNG_STATE else torch.int64
    return (
        torch.empty_like(query),
        query.new_empty(query.shape[:3], dtype=torch.float32),
        None,
        None,
        query.shape[2],
        key.shape[2],
        query.new_empty((2,) if HAS_RNG_STATE else (), dtype=dtype),
        query.new_empty((), dtype=dtype),
        query.new_empty(0),
    )


@op(
    "aten::_scaled_dot_product_flash_attention",
    source=_SOURCE,
    reference=forward_reference(_FORWARD, _meta),
    meta=_meta,
    cpu_outputs=frozenset() if HAS_RNG_STATE else frozenset({6, 7}),
)
def _memory(call: OpCall) -> None:
    result, logsumexp, rng_state, unused = (call.result[index] for index in (0, 1, 6, 7))
    dropout = call.argument("dropout_p")
    call.alloc_outputs(result, logsumexp)
    if not dropout and result.shape[0]:
        alloc_split_keys(call, *call.args[:2])
    alloc_random_state(call, rng_state, unused, dropout)


def alloc_random_state(
    call: OpCall, rng_state: torch.Tensor, unused: torch.Tensor, dropout: float
) -> None:
    """Allocate the random state that a forward pass returns, if it lies on the GPU."""
    if not HAS_RNG_STATE:
        return
    if not dropout:
        call.alloc_outputs(rng_state, unused)
        return
    # The kernel makes the random state twice, and drops the first.
    first = call.alloc_temp(RANDOM_STATE[0])
    call.alloc_outputs(unused, rng_state)
    call.free_temp(first)


def alloc_split_keys(call: OpCall, query: torch.Tensor, key: torch.Tensor) -> None:
    """Allocate what the parts of a dense forward pass, which share out the keys, return."""
    batch, heads, queries, size = query.shape
    if queries == 1 and heads > key.shape[1]:
        queries, heads = heads // key.shape[1], key.shape[1]
    # ``set_params_splitkv`` in ``flash_attn/flash_api.cpp``: keys and queries of one block.
    rows = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks = batch * heads * ceil(queries / 64)
    splits = _splits(call.model, blocks, ceil(key.shape[2] / rows))
    if splits > 1:
        sums = splits * batch * heads * queries * FLOAT
        call.alloc_temps([sums, sums * _rounded_head(size)])


@decision
def _splits(gpu: GPU, blocks: int, parts: int) -> int:
    return splits_of(blocks, 2 * gpu.multi_processor_count, parts)


def splits_of(blocks: int, processors: int, key_blocks: int) -> int:
    """Parts in which flash attention shares out the keys (``num_splits_heuristic``)."""
    if blocks >= 0.8 * processors:
        return 1
    most = min(_MOST_SPLITS, processors, key_blocks)
    use = {
        count: blocks * count / processors / ceil(blocks * count / processors)
        for count in range(1, most + 1)
        if count == 1 or ceil(key_blocks / count) != ceil(key_blocks / (count - 1))
    }
    best = max(use.values(), default=0.0)
    return next((count for count, good in use.items() if good >= 0.85 * best), 1)


@op(
    "aten::_scaled_dot_product_flash_attention_backward",
    source=_SOURCE,
    reference=backward_reference(_BACKWARD),
)
def _backward_memory(call: OpCall) -> None:
    alloc_heads_behind_sequence(call, 0, 4)
    call.alloc_outputs()
    query, key = call.args[1:3]
    batch, _, queries, _ = query.shape
    if not batch:
        return
    rows = batch * (queries + -queries % ROWS)
    alloc_accumulators(call, query.transpose(1, 2), key.transpose(1, 2), batch, rows)


def alloc_accumulators(
    call: OpCall,
    query: torch.Tensor,  # its last dimensions are heads and head dimension, as those of the key
    key: torch.Tensor,  # with fewer heads, each gradient of a head is the sum of several
    batch: int,  # number of sequences
    rows: int,  # queries of all sequences, each rounded up
) -> None:
    """Allocate the temporaries of a backward pass."""
    warn_of_nondeterminism("Flash Attention")
    heads, size = query.shape[-2:]
    parts = 1
    if is_deterministic():
        parts = ceil(call.model.multi_processor_count / (batch * heads))
    call.alloc_temps([heads * rows * FLOAT, parts * heads * rows * _rounded_head(size) * FLOAT])
    if key.shape[-2] != heads:
        call.alloc_temps([key.numel() // key.shape[-2] * heads * query.element_size()] * 2)


def _rounded_head(size: int) -> int:
    """``head_size_rounded`` of ``mha_fwd`` and ``mha_bwd`` in ``flash_attn/flash_api.cpp``."""
    return size + -size % (32 if size <= 128 else 64)
