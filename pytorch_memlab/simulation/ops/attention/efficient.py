"""Memory-efficient attention: ``transformers/cuda/attention.cu`` and ``attention_backward.cu``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import op
from .backward_tiles import tile_of, workspace
from .reference import (
    Attention,
    alloc_heads_behind_sequence,
    backward,
    forward,
    is_deterministic,
    new_seed,
)

if TYPE_CHECKING:
    from ..op_call import OpCall

_FOLDER: Final = "aten/src/ATen/native/transformers/cuda"
_FLOAT: Final = 4

_LOGSUMEXP_ALIGNMENT: Final = 32
"""Queries that the backward pass loads the logsumexp of at once."""

_BIAS_ALIGNMENT: Final = 16
"""Elements: rows of a mask's gradient are parts of rows of a multiple of it."""

_MOST_DROPPED_BATCHES: Final = 65_535
_MOST_IN_REGISTERS: Final = 128


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if dropout_p and query.shape[0] > _MOST_DROPPED_BATCHES:
        raise RuntimeError(
            "Efficient attention cannot produce valid seed and offset outputs when the batch size "
            f"exceeds ({_MOST_DROPPED_BATCHES})."
        )
    if attn_bias is not None and attn_bias.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    results = _meta(query, key, value, attn_bias, compute_log_sumexp)
    attention = Attention(
        query, key, value, attn_bias, dropout_p, is_causal, scale, new_seed(dropout_p)
    )
    result, logsumexp = forward(attention)
    results[0].copy_(result)
    if compute_log_sumexp:
        results[1].fill_(float("inf"))
        results[1][..., : query.shape[2]].copy_(logsumexp)
    results[2].fill_(attention.seed)
    results[3].zero_()
    return results


def _meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    *_others: Any,
    **_options: Any,
) -> tuple[Any, ...]:
    batch, heads, queries, _ = query.shape
    aligned = queries + -queries % _LOGSUMEXP_ALIGNMENT
    return (
        query.new_empty((batch, queries, heads, value.shape[-1])).transpose(1, 2),
        query.new_empty((batch, heads, aligned * compute_log_sumexp), dtype=torch.float32),
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
    )


@op(
    "aten::_scaled_dot_product_efficient_attention",
    source=f"{_FOLDER}/attention.cu",
    reference=_reference,
    meta=_meta,
    cpu_outputs=frozenset({2, 3}),
)
def _memory(call: OpCall) -> None:
    result, logsumexp = call.result[:2]
    call.alloc_outputs(result, logsumexp)
    query = call.args[0]
    size = max(query.shape[-1], result.shape[-1])
    if query.dtype != torch.float32 and size > _MOST_IN_REGISTERS:
        call.alloc_temp(result.numel() * _FLOAT)


def _backward_reference(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    results = _backward_meta(grad_out_, query, key, value, attn_bias, *(None,) * 5, grad_input_mask)
    seed = int(philox_seed) if dropout_p else 0
    sums = logsumexp[..., : query.shape[2]] if logsumexp.numel() else None
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    for result, made in zip(
        results, backward(attention, grad_out_, out, sums, results[3] is not None), strict=True
    ):
        if result is not None and made is not None:
            result.copy_(made)
    return results


def _backward_meta(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: Any,
    grad_input_mask: list[bool],
    *_others: Any,
    **_options: Any,
) -> tuple[torch.Tensor | None, ...]:
    gradients = tuple(
        tensor.new_empty(tensor.transpose(1, 2).shape).transpose(1, 2)
        for tensor in (query, key, value)
    )
    if attn_bias is None or not grad_input_mask[3]:
        return (*gradients, None)
    *outer, last = attn_bias.shape
    wide = attn_bias.new_empty((*outer, last + -last % _BIAS_ALIGNMENT))
    return (*gradients, wide[..., :last])


@op(
    "aten::_scaled_dot_product_efficient_attention_backward",
    source=f"{_FOLDER}/attention_backward.cu",
    reference=_backward_reference,
    meta=_backward_meta,
)
def _backward_memory(call: OpCall) -> None:
    alloc_heads_behind_sequence(call, 0)
    call.alloc_outputs()
    _, query, key, value = call.args[:4]
    batch, heads, queries, size = query.shape
    head = size, value.shape[-1]
    has_dropout = bool(call.args[9])
    tile = tile_of(call.model, query.dtype, max(head), has_dropout)
    if tile.delta:
        call.alloc_temp(batch * heads * queries * _FLOAT)
    else:
        _alloc_delta(call)
    sizes = batch, heads, queries, key.shape[2]
    nbytes = workspace(tile, sizes, head, split=not is_deterministic())
    if nbytes:
        call.alloc_temp(nbytes)


def _alloc_delta(call: OpCall) -> None:
    """Result times gradient in float32, summed over the head dimension, heads before queries."""
    result = call.args[5]
    batch, heads, queries, _ = result.shape
    copies = 0 if result.dtype == torch.float32 else 2
    wide = [call.alloc_temp(result.numel() * _FLOAT) for _ in range(copies)]
    product = call.alloc_temp(result.numel() * _FLOAT)
    sums = call.alloc_temp(batch * heads * queries * _FLOAT)
    if heads > 1 and queries > 1:
        call.alloc_temp(batch * heads * queries * _FLOAT)
        call.free_temp(sums)
    for allocation in (product, *wide):
        call.free_temp(allocation)
