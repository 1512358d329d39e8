"""Flash attention: ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from ..op_call import OpCall
from ..registry import op
from .reference import (
    alloc_heads_behind_sequence,
    backward_reference,
    forward_reference,
    is_deterministic,
)

_SOURCE: Final = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_FORWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention.default
_BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_HAS_RNG_STATE: Final = any(result.name == "rng_state" for result in _FORWARD._schema.returns)
"""True if the random state lies on the GPU; before, it is a seed on the CPU."""

_FLOAT: Final = 4
_UINT64: Final = 8
_ROWS: Final = 128
"""Queries that the accumulators are a multiple of."""

_MOST_SPLITS: Final = 128


def _meta(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_others: Any, **_options: Any
) -> tuple[Any, ...]:
    """PyTorch 2.4 has no meta kernel of it."""
    dtype = torch.uint64 if _HAS_RNG_STATE else torch.int64
    return (
        torch.empty_like(query),
        query.new_empty(query.shape[:3], dtype=torch.float32),
        None,
        None,
        query.shape[2],
        key.shape[2],
        query.new_empty((2,) if _HAS_RNG_STATE else (), dtype=dtype),
        query.new_empty((), dtype=dtype),
        query.new_empty(0),
    )


@op(
    "aten::_scaled_dot_product_flash_attention",
    source=_SOURCE,
    reference=forward_reference(_FORWARD, _meta),
    meta=_meta,
    cpu_outputs=frozenset() if _HAS_RNG_STATE else frozenset({6, 7}),
)
def _memory(call: OpCall) -> None:
    result, logsumexp, rng_state, unused = (call.result[index] for index in (0, 1, 6, 7))
    dropout = call.argument("dropout_p")
    call.alloc_outputs(result, logsumexp)
    if not dropout and result.shape[0]:
        _split_keys(call)
    if rng_state.dtype != torch.uint64:
        return
    if not dropout:
        call.alloc_outputs(rng_state, unused)
        return
    # The kernel makes the random state twice, and drops the first.
    first = call.alloc_temp(2 * _UINT64)
    call.alloc_outputs(unused, rng_state)
    call.free_temp(first)


def _split_keys(call: OpCall) -> None:
    query, key = call.args[:2]
    batch, heads, queries, size = query.shape
    if queries == 1 and heads > key.shape[1]:
        queries, heads = heads // key.shape[1], key.shape[1]
    rows = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks = batch * heads * ceil(queries / 64)
    splits = _splits(call.model, blocks, ceil(key.shape[2] / rows))
    if splits > 1:
        sums = splits * batch * heads * queries * _FLOAT
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
    batch, heads, queries, size = query.shape
    if not batch:
        return
    rows = batch * heads * (queries + -queries % _ROWS)
    parts = 1
    if is_deterministic():
        parts = ceil(call.model.multi_processor_count / (batch * heads))
    call.alloc_temps([rows * _FLOAT, parts * rows * _rounded_head(size) * _FLOAT])
    if key.shape[1] != heads:
        call.alloc_temps([batch * key.shape[2] * heads * size * query.element_size()] * 2)


def _rounded_head(size: int) -> int:
    return size + -size % (32 if size <= 128 else 64)
