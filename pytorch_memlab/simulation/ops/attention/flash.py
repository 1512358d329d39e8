"""Flash attention: ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final

import torch

from ...hardware.decisions import decision
from ..registry import op
from .reference import (
    Attention,
    alloc_heads_behind_sequence,
    copy_into,
    forward,
    input_gradients,
    is_deterministic,
    new_seed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...hardware.gpu import GPU
    from ..op_call import OpCall

_SOURCE: Final = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_RETURNS: Final = torch.ops.aten._scaled_dot_product_flash_attention.default._schema.returns
_HAS_RNG_STATE: Final = any(result.name == "rng_state" for result in _RETURNS)
"""True if the random state lies on the GPU; before, it is a seed on the CPU."""

_FLOAT: Final = 4
_UINT64: Final = 8
_ROWS: Final = 128
"""Queries that the accumulators are a multiple of."""

_MOST_SPLITS: Final = 128


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    results = _meta(query, key, value)
    attention = Attention(query, key, value, None, dropout_p, is_causal, scale, new_seed(dropout_p))
    copy_into(results, forward(attention))
    state = results[6].view(torch.int64) if _HAS_RNG_STATE else results[6]
    state.fill_(0).view(-1)[0] = attention.seed
    return results


def _meta(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_others: Any, **_options: Any
) -> tuple[Any, ...]:
    batch, heads, queries, _ = query.shape
    random: tuple[Sequence[int], torch.dtype] = (
        ((2,), torch.uint64) if _HAS_RNG_STATE else ((), torch.int64)
    )
    return (
        torch.empty_like(query),
        query.new_empty((batch, heads, queries), dtype=torch.float32),
        None,
        None,
        queries,
        key.shape[2],
        query.new_empty(random[0], dtype=random[1]),
        query.new_empty((), dtype=random[1]),
        query.new_empty(0),
    )


@op(
    "aten::_scaled_dot_product_flash_attention",
    source=_SOURCE,
    reference=_reference,
    meta=_meta,
    cpu_outputs=frozenset() if _HAS_RNG_STATE else frozenset({6, 7}),
)
def _memory(call: OpCall) -> None:
    result, logsumexp, rng_state, unused = (call.result[index] for index in (0, 1, 6, 7))
    dropout = call.argument(3, "dropout_p", 0.0)
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
        call.alloc_temp(sums)
        call.alloc_temp(sums * _rounded_head(size))


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


def _backward_reference(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    state = philox_seed.view(torch.int64) if _HAS_RNG_STATE else philox_seed
    seed = int(state.reshape(-1)[0]) if dropout_p else 0
    attention = Attention(query, key, value, None, dropout_p, is_causal, scale, seed)
    return input_gradients(attention, grad_out, out, logsumexp)


@op(
    "aten::_scaled_dot_product_flash_attention_backward",
    source=_SOURCE,
    reference=_backward_reference,
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
    call.alloc_temp(rows * _FLOAT)
    call.alloc_temp(parts * rows * _rounded_head(size) * _FLOAT)
    if key.shape[1] != heads:
        for _ in range(2):
            call.alloc_temp(batch * key.shape[2] * heads * size * query.element_size())


def _rounded_head(size: int) -> int:
    return size + -size % (32 if size <= 128 else 64)
