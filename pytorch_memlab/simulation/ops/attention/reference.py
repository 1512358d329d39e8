"""Attention on the CPU: results and gradients of CUDA's fused kernels.

Without dropout the CPU's own flash kernel computes them in blocks. Dropout, and the gradient of
a mask, take the scores of all queries and keys together.

The fused kernels name their arguments and results alike. The seed of a dropout lies where CUDA has
the random state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from ...machine.op_arguments import tensors_in
from ...machine.refused_calls import unsupported
from ..core.autograd_reference import gradients
from ..core.memory_formats import on_meta
from ..core.op_call import OpCall, named_arguments
from ..core.registry import Implementation

_aten: Final = torch.ops.aten
_warned: Final[set[str]] = set()


class Attention(NamedTuple):
    """The arguments of an attention."""

    query: torch.Tensor  # [batch, heads, queries, head dimension]
    key: torch.Tensor  # [batch, heads of keys, keys, head dimension]
    value: torch.Tensor  # [batch, heads of values, keys, head dimension of values]
    bias: torch.Tensor | None  # added to the scores, broadcast to [batch, heads, queries, keys]
    dropout: float  # probability
    causal: bool  # whether the n-th query sees the first n keys only
    scale: float | None  # of the scores; None: one over the root of the head dimension
    seed: int  # of the dropout


View = Callable[[torch.Tensor], torch.Tensor]


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class SequenceGroup(NamedTuple):
    """One sequence, or all sequences of one length together."""

    attention: Attention  # of this part
    queries: View = _same  # its part of a tensor laid out as the query, as that of the attention
    keys: View = _same  # its part of a tensor laid out as the key, as that of the attention
    # its part of the logsumexp, [batch, heads, queries]
    rows: View = partial(torch.flatten, start_dim=2)


Parts = Callable[[Any, dict[str, Any], int], Iterable[SequenceGroup]]


def _whole(_op: Any, named: dict[str, Any], seed: int) -> Iterable[SequenceGroup]:
    names = ("query", "key", "value", "attn_bias", "dropout_p", "is_causal", "scale")
    return [SequenceGroup(Attention._make([*map(named.get, names), seed]))]


def forward_reference(op: Any, meta: Implementation, parts: Parts = _whole) -> Implementation:
    """The results of a fused kernel, laid out as a meta kernel says."""
    names = [output.name for output in op._schema.returns]
    state = min(names.index(name) for name in ("rng_state", "philox_seed") if name in names)

    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if any(tensor.is_nested for tensor in tensors_in(args, kwargs)):
            raise unsupported(f"{op.name()} with nested tensors")
        results: tuple[Any, ...] = meta(*args, **kwargs)
        output, logsumexp = results[:2]
        named = named_arguments(op, args, kwargs)
        seed = int(torch.randint(2**62, ())) if named["dropout_p"] else 0
        for tensor in results[state : state + 2]:
            tensor.view(torch.int64).zero_()
        results[state].view(torch.int64).view(-1)[0] = seed
        has_rows = logsumexp is not None and logsumexp.numel()
        if has_rows:
            logsumexp.fill_(float("inf"))
        for part in parts(op, named, seed):
            result, sums = forward(part.attention)
            part.queries(output).copy_(result)
            if has_rows:
                part.rows(logsumexp)[..., : sums.shape[2]].copy_(sums)
        return results

    return reference


def backward_reference(op: Any, parts: Parts = _whole) -> Implementation:
    """The gradients that a fused kernel returns, laid out as PyTorch's meta kernel says."""

    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        named = named_arguments(op, args, kwargs)
        results = empty_results(op, *args, **kwargs)
        state = named["rng_state" if "rng_state" in named else "philox_seed"]
        seed = int(state.view(torch.int64).view(-1)[0]) if named["dropout_p"] else 0
        for attention, queries, keys, _ in parts(op, named, seed):
            wants_bias = attention.bias is not None and named.get("grad_input_mask", [False])[-1]
            values = gradients_of(attention, queries(args[0]), wants_bias=wants_bias)
            views = (queries, keys, keys, _same)
            for result, view, value in zip(results, views, values, strict=False):
                if result is not None:
                    view(result).copy_(value)
        return results

    return reference


def empty_results(op: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Tensors for the results of an op, laid out as PyTorch's meta kernel says."""
    args, kwargs = tree_map_only(torch.Tensor, on_meta, (args, kwargs))
    results: tuple[Any, ...] = tree_map_only(torch.Tensor, _on_cpu, op(*args, **kwargs))
    return results


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in a storage of the same size."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.empty(count, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def forward(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the logsumexp of the scores."""
    if not _suits_cpu_kernel(attention):
        return _by_scores(attention)
    result, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu.default(
        attention.query,
        *_all_heads(attention),
        0.0,
        attention.causal,
        attn_mask=attention.bias,
        scale=attention.scale,
    )
    return result, logsumexp


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


def _by_scores(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and logsumexp, from the weight of each key for each query, in float32 or wider."""
    dtype = torch.promote_types(attention.query.dtype, torch.float32)
    key, value = (head.to(dtype) for head in _all_heads(attention))
    factor = attention.query.shape[-1] ** -0.5 if attention.scale is None else attention.scale
    scores = (attention.query.to(dtype) @ key.transpose(-2, -1)) * factor
    if attention.bias is not None:
        scores = scores + attention.bias
    if attention.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
        scores = scores.masked_fill(~seen, float("-inf"))
    logsumexp = scores.logsumexp(-1)
    sees_none = logsumexp.isneginf().unsqueeze(-1)
    weights = scores.masked_fill(sees_none, 0).softmax(-1).masked_fill(sees_none, 0)
    if attention.dropout:
        generator = torch._C.Generator().manual_seed(attention.seed)
        drawn = torch.rand(weights.shape, generator=generator)
        kept = (drawn >= attention.dropout).to(dtype).div_(1 - attention.dropout)
        weights = weights * kept
    return (weights @ value).to(attention.query.dtype), logsumexp


def gradients_of(
    attention: Attention, grad_output: torch.Tensor, *, wants_bias: bool
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key, value and, if wanted, of the bias."""
    compute, count = (_by_scores, 4) if wants_bias else (forward, 3)

    def attend(*tensors: Any) -> tuple[torch.Tensor, ...]:
        return compute(Attention(*tensors, *attention[count:]))

    inputs: list[Any] = [*attention[:count]]
    return gradients(attend, inputs, [grad_output])


def alloc_heads_behind_sequence(call: OpCall, *positions: int) -> None:
    """Allocate copies of arguments that do not have their heads behind their sequence in memory."""
    call.alloc_contiguous(*(call.args[position].transpose(1, 2) for position in positions))


def warn_of_nondeterminism(kernel: str) -> None:
    """Warn where the program asked for it, once in a process, as C++ does."""
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        return
    if kernel not in _warned or torch.is_warn_always_enabled():
        _warned.add(kernel)
        warnings.warn(
            f"{kernel} defaults to a non-deterministic algorithm. To explicitly enable determinism "
            "call torch.use_deterministic_algorithms(True, warn_only=False).",
            stacklevel=2,
        )


def is_deterministic() -> bool:
    """True if the program refuses algorithms that are not deterministic."""
    return torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    )
