"""Fused attention, backward: the gradients that CUDA's kernels return, computed on the host.

Shapes and strides: ``aten/src/ATen/native/transformers/cuda/attention_backward.cu`` and
``cuda/flash_attn/flash_api.cpp`` beside it.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .forward import HAS_RNG_STATE
from .math import Attention, backward

_BIAS_ALIGNMENT: Final = 16
"""Elements: rows of a mask's gradient are parts of rows of a multiple of it."""


def flash(
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
    """``_scaled_dot_product_flash_attention_backward`` computed on the host."""
    state = philox_seed.view(torch.int64) if HAS_RNG_STATE else philox_seed
    seed = int(state.reshape(-1)[0]) if dropout_p else 0
    attention = Attention(query, key, value, None, dropout_p, is_causal, scale, seed)
    values = backward(attention, grad_out, out, logsumexp, False)
    return tuple(
        torch.empty_like(like).copy_(made)
        for like, made in zip((query, key, value), values[:3], strict=True)
    )


def efficient(
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
    """``_scaled_dot_product_efficient_attention_backward`` computed on the host."""
    results = efficient_shapes(
        grad_out_, query, key, value, attn_bias, *(None,) * 5, grad_input_mask
    )
    seed = int(philox_seed) if dropout_p else 0
    sums = logsumexp[..., : query.shape[2]] if logsumexp.numel() else None
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    for result, made in zip(
        results, backward(attention, grad_out_, out, sums, results[3] is not None), strict=True
    ):
        if result is not None and made is not None:
            result.copy_(made)
    return results


def efficient_shapes(
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
    *_rest: Any,
    **_options: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Shapes of what ``efficient`` returns."""
    gradients = tuple(
        tensor.new_empty(tensor.transpose(1, 2).shape).transpose(1, 2)
        for tensor in (query, key, value)
    )
    if attn_bias is None or not grad_input_mask[3]:
        return (*gradients, None)
    *outer, last = attn_bias.shape
    wide = attn_bias.new_empty((*outer, last + -last % _BIAS_ALIGNMENT))
    return (*gradients, wide[..., :last])


def cudnn(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    attn_bias: torch.Tensor | None,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """``_scaled_dot_product_cudnn_attention_backward`` computed on the host."""
    seed = int(philox_seed) if dropout_p else 0
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    values = backward(attention, grad_out, out, logsumexp.squeeze(-1), False)
    return tuple(
        torch.empty_like(like).copy_(made)
        for like, made in zip((query, key, value), values[:3], strict=True)
    )
