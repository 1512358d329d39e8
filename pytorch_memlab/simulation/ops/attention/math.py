"""Attention on the host: results and gradients of CUDA's fused kernels.

Without dropout the host's own flash kernel computes them in blocks. Dropout, and the gradient of
a mask, take the scores of all queries and keys together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten: Final = torch.ops.aten


class Attention(NamedTuple):
    """What an attention computes with.

    Args:
        query: [batch, heads, queries, head dimension].
        key: [batch, heads of keys, keys, head dimension].
        value: [batch, heads of values, keys, head dimension of values].
        bias: added to the scores, broadcast to [batch, heads, queries, keys].
        dropout: probability.
        causal: whether the n-th query sees the first n keys only.
        scale: of the scores; None: one over the root of the head dimension.
        seed: of the dropout.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    seed: int

    @property
    def factor(self) -> float:
        """Scale of the scores."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale


def new_seed(dropout: float) -> int:
    """A seed for a dropout."""
    return int(torch.empty((), dtype=torch.int64).random_(0, 2**62)) if dropout else 0


def forward(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute an attention."""
    if _suits_host(attention):
        key, value = _all_heads(attention)
        result, sums = _aten._scaled_dot_product_flash_attention_for_cpu.default(
            attention.query,
            key,
            value,
            0.0,
            attention.causal,
            attn_mask=attention.bias,
            scale=attention.scale,
        )
        return result, sums
    weights, sums = _weights(attention)
    kept = _kept(attention, weights)
    _, value = _all_heads(attention)
    result = (weights if kept is None else weights * kept) @ value.to(weights.dtype)
    return result.to(attention.query.dtype), sums


def backward(
    attention: Attention,
    gradient: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor | None,
    wants_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute an attention's gradients."""
    if sums is not None and not wants_bias and _suits_host(attention):
        key, value = _all_heads(attention)
        of_query, of_key, of_value = (
            _aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                gradient,
                attention.query,
                key,
                value,
                result,
                sums.transpose(1, 2).contiguous().transpose(1, 2),
                0.0,
                attention.causal,
                attn_mask=attention.bias,
                scale=attention.scale,
            )
        )
        of_bias = None
    else:
        of_query, of_key, of_value, of_bias = _gradients(attention, gradient)
    own = attention.key.shape[1], attention.value.shape[1]
    of_key, of_value = (
        _summed(tensor, heads) for tensor, heads in zip((of_key, of_value), own, strict=True)
    )
    return of_query, of_key, of_value, of_bias if wants_bias else None


def _suits_host(attention: Attention) -> bool:
    """Whether the host's flash kernel computes just this, in every release."""
    bias = attention.bias
    return (
        not attention.dropout
        and attention.query.shape[-1] == attention.value.shape[-1]
        and all(tensor.numel() and tensor.stride(-1) == 1 for tensor in attention[:3])
        and (bias is None or (bias.stride(-1) == 1 and bias.shape[-1] == attention.key.shape[2]))
    )


def _all_heads(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value with a head for each head of the query."""
    heads = attention.query.shape[1]
    key, value = (
        tensor
        if tensor.shape[1] == heads
        else tensor.repeat_interleave(heads // tensor.shape[1], 1)
        for tensor in attention[1:3]
    )
    return key, value


def _weights(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight of each key for each query, in float32 or wider, and the sums' logarithms."""
    query, key = attention.query, _all_heads(attention)[0]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) @ key.to(dtype).transpose(-2, -1)).mul_(attention.factor)
    if attention.bias is not None:
        scores = scores + attention.bias
    if attention.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
        scores.masked_fill_(~seen, float("-inf"))
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp_().nan_to_num_(0.0), sums


def _kept(attention: Attention, weights: torch.Tensor) -> torch.Tensor | None:
    """What dropout multiplies the weights with, the same for the same seed."""
    if not attention.dropout:
        return None
    generator = torch._C.Generator()
    generator.manual_seed(attention.seed)
    drawn = torch.rand(weights.shape, generator=generator)
    return (drawn >= attention.dropout).to(weights.dtype).div_(1 - attention.dropout)


def _gradients(attention: Attention, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
    weights, _ = _weights(attention)
    kept = _kept(attention, weights)
    dtype = weights.dtype
    key, value = (tensor.to(dtype) for tensor in _all_heads(attention))
    gradient = gradient.to(dtype)
    of_value = (weights if kept is None else weights * kept).transpose(-2, -1) @ gradient
    of_weights = gradient @ value.transpose(-2, -1)
    if kept is not None:
        of_weights.mul_(kept)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_query = (of_scores @ key).mul_(attention.factor)
    of_key = (of_scores.transpose(-2, -1) @ attention.query.to(dtype)).mul_(attention.factor)
    return of_query, of_key, of_value, of_scores


def _summed(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    """The gradient of a head is the sum of those of its copies."""
    if gradient.shape[1] == heads:
        return gradient
    batch, copies, *rest = gradient.shape
    return gradient.reshape(batch, heads, copies // heads, *rest).sum(2)
