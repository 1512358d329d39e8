"""Attention on the CPU: results and gradients of CUDA's fused kernels.

Without dropout the CPU's own flash kernel computes them in blocks. Dropout, and the gradient of
a mask, take the scores of all queries and keys together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..op_call import OpCall

_aten: Final = torch.ops.aten


class Attention(NamedTuple):
    """The arguments of an attention.

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
    if _suits_cpu_kernel(attention):
        key, value = _all_heads(attention)
        result, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu.default(
            attention.query,
            key,
            value,
            0.0,
            attention.causal,
            attn_mask=attention.bias,
            scale=attention.scale,
        )
        return result, logsumexp
    weights, logsumexp = _weights(attention)
    dropout_mask = _dropout_mask(attention, weights)
    _, value = _all_heads(attention)
    result = (weights if dropout_mask is None else weights * dropout_mask) @ value.to(weights.dtype)
    return result.to(attention.query.dtype), logsumexp


def backward(
    attention: Attention,
    grad_output: torch.Tensor,
    result: torch.Tensor,
    logsumexp: torch.Tensor | None,
    wants_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute an attention's gradients."""
    if logsumexp is not None and not wants_bias and _suits_cpu_kernel(attention):
        key, value = _all_heads(attention)
        grad_query, grad_key, grad_value = (
            _aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                grad_output,
                attention.query,
                key,
                value,
                result,
                logsumexp.transpose(1, 2).contiguous().transpose(1, 2),
                0.0,
                attention.causal,
                attn_mask=attention.bias,
                scale=attention.scale,
            )
        )
        grad_bias = None
    else:
        grad_query, grad_key, grad_value, grad_bias = _gradients(attention, grad_output)
    own = attention.key.shape[1], attention.value.shape[1]
    grad_key, grad_value = (
        _sum_heads(tensor, heads) for tensor, heads in zip((grad_key, grad_value), own, strict=True)
    )
    return grad_query, grad_key, grad_value, grad_bias if wants_bias else None


def input_gradients(
    attention: Attention,
    grad_output: torch.Tensor,
    result: torch.Tensor,
    logsumexp: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value, each laid out as its input."""
    inputs = attention.query, attention.key, attention.value
    values = backward(attention, grad_output, result, logsumexp, False)
    return tuple(
        torch.empty_like(like).copy_(made) for like, made in zip(inputs, values[:3], strict=True)
    )


def _suits_cpu_kernel(attention: Attention) -> bool:
    """True if the CPU's flash kernel computes just this, in every release."""
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
    """Weight of each key for each query, in float32 or wider, and their logsumexp."""
    query, key = attention.query, _all_heads(attention)[0]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) @ key.to(dtype).transpose(-2, -1)).mul_(attention.factor)
    if attention.bias is not None:
        scores = scores + attention.bias
    if attention.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
        scores.masked_fill_(~seen, float("-inf"))
    logsumexp = scores.logsumexp(-1)
    return (scores - logsumexp.unsqueeze(-1)).exp_().nan_to_num_(0.0), logsumexp


def _dropout_mask(attention: Attention, weights: torch.Tensor) -> torch.Tensor | None:
    """The dropout mask with its scale, the same for the same seed."""
    if not attention.dropout:
        return None
    generator = torch._C.Generator()
    generator.manual_seed(attention.seed)
    drawn = torch.rand(weights.shape, generator=generator)
    return (drawn >= attention.dropout).to(weights.dtype).div_(1 - attention.dropout)


def _gradients(attention: Attention, grad_output: torch.Tensor) -> Sequence[torch.Tensor]:
    weights, _ = _weights(attention)
    dropout_mask = _dropout_mask(attention, weights)
    dtype = weights.dtype
    key, value = (tensor.to(dtype) for tensor in _all_heads(attention))
    grad_output = grad_output.to(dtype)
    grad_value = (weights if dropout_mask is None else weights * dropout_mask).transpose(
        -2, -1
    ) @ grad_output
    grad_weights = grad_output @ value.transpose(-2, -1)
    if dropout_mask is not None:
        grad_weights.mul_(dropout_mask)
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    grad_query = (grad_scores @ key).mul_(attention.factor)
    grad_key = (grad_scores.transpose(-2, -1) @ attention.query.to(dtype)).mul_(attention.factor)
    return grad_query, grad_key, grad_value, grad_scores


def _sum_heads(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    """The gradient of a head is the sum of those of its copies."""
    if gradient.shape[1] == heads:
        return gradient
    batch, copies, *rest = gradient.shape
    return gradient.reshape(batch, heads, copies // heads, *rest).sum(2)


def copy_into(results: tuple[Any, ...], values: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Copy values into those results that exist."""
    for result, value in zip(results, values, strict=False):
        if result is not None:
            result.copy_(value)


def alloc_heads_behind_sequence(call: OpCall, *positions: int) -> None:
    """Allocate copies of arguments that do not have their heads behind their sequence in memory."""
    call.alloc_contiguous(*(call.args[position].transpose(1, 2) for position in positions))


def is_deterministic() -> bool:
    """True if the program refuses algorithms that are not deterministic."""
    return torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    )
