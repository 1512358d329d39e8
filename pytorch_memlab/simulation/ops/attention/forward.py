"""Fused attention, forward: what CUDA's kernels return, computed on the host.

Shapes and strides: ``transformers/cuda/attention.cu``, ``cuda/flash_attn/flash_api.cpp`` and
``native/cudnn/MHA.cpp`` below ``aten/src/ATen/native``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from .math import Attention, forward, new_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUMS_ALIGNMENT: Final = 32
"""Queries that memory-efficient attention's backward pass loads the sums of at once."""

_FLASH_RESULTS: Final = torch.ops.aten._scaled_dot_product_flash_attention.default._schema.returns
HAS_RNG_STATE: Final = any(result.name == "rng_state" for result in _FLASH_RESULTS)
"""Whether flash attention keeps its random state on the GPU; before, a seed on the host."""

FLASH_ON_HOST: Final = frozenset() if HAS_RNG_STATE else frozenset({6, 7})
EFFICIENT_ON_HOST: Final = frozenset({2, 3})
"""Positions of seed and offset where the host keeps them."""

_MOST_DROPPED_BATCHES: Final = 65_535


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """``_scaled_dot_product_flash_attention`` computed on the host."""
    results = flash_shapes(query, key, value)
    attention = Attention(query, key, value, None, dropout_p, is_causal, scale, new_seed(dropout_p))
    _copy(results, forward(attention))
    state = results[6].view(torch.int64) if HAS_RNG_STATE else results[6]
    state.fill_(0).view(-1)[0] = attention.seed
    return results


def flash_shapes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_rest: Any, **_options: Any
) -> tuple[Any, ...]:
    """Shapes of what ``flash`` returns."""
    batch, heads, queries, _ = query.shape
    random: tuple[Sequence[int], torch.dtype] = (
        ((2,), torch.uint64) if HAS_RNG_STATE else ((), torch.int64)
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


def efficient(
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
    """``_scaled_dot_product_efficient_attention`` computed on the host."""
    if dropout_p and query.shape[0] > _MOST_DROPPED_BATCHES:
        raise RuntimeError(
            "Efficient attention cannot produce valid seed and offset outputs when the batch size "
            f"exceeds ({_MOST_DROPPED_BATCHES})."
        )
    if attn_bias is not None and attn_bias.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    results = efficient_shapes(query, key, value, attn_bias, compute_log_sumexp)
    attention = Attention(
        query, key, value, attn_bias, dropout_p, is_causal, scale, new_seed(dropout_p)
    )
    result, sums = forward(attention)
    results[0].copy_(result)
    if compute_log_sumexp:
        results[1].fill_(float("inf"))
        results[1][..., : query.shape[2]].copy_(sums)
    results[2].fill_(attention.seed)
    results[3].zero_()
    return results


def efficient_shapes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    *_rest: Any,
    **_options: Any,
) -> tuple[Any, ...]:
    """Shapes of what ``efficient`` returns."""
    batch, heads, queries, _ = query.shape
    aligned = queries + -queries % _SUMS_ALIGNMENT
    return (
        query.new_empty((batch, queries, heads, value.shape[-1])).transpose(1, 2),
        query.new_empty((batch, heads, aligned * compute_log_sumexp), dtype=torch.float32),
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
    )


def cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """``_scaled_dot_product_cudnn_attention`` computed on the host."""
    results = cudnn_shapes(query, key, value, attn_bias, compute_log_sumexp)
    attention = Attention(
        query, key, value, attn_bias, dropout_p, is_causal, scale, new_seed(dropout_p)
    )
    result, sums = forward(attention)
    _copy(results, (result, sums.unsqueeze(-1)))
    results[6].fill_(attention.seed)
    results[7].zero_()
    return results


def cudnn_shapes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    *_rest: Any,
    **_options: Any,
) -> tuple[Any, ...]:
    """Shapes of what ``cudnn`` returns."""
    batch, heads, queries, _ = query.shape
    sums = None
    if compute_log_sumexp:
        sums = query.new_empty((batch, heads, queries, 1), dtype=torch.float32)
    return (
        _like_query(query, value.shape[-1]),
        sums,
        None,
        None,
        queries,
        key.shape[2],
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
        None,
    )


def _like_query(query: torch.Tensor, size: int) -> torch.Tensor:
    """A tensor in the query's layout, with another last dimension (``MHA.cpp``)."""
    if query.shape[-1] == size:
        return torch.empty_like(query)
    shape = (*query.shape[:-1], size)
    strides = [0] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=query.stride):
        strides[dim] = step
        step *= shape[dim]
    return query.new_empty_strided(shape, tuple(strides))


def _copy(results: tuple[Any, ...], values: tuple[torch.Tensor, torch.Tensor]) -> None:
    for result, value in zip(results, values, strict=False):
        if result is not None:
            result.copy_(value)
