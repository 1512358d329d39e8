"""Attention over sequences of several lengths, which lie one after another in one tensor.

Jagged tensors and ``torch.nn.attention.varlen`` call these ops. Their tensors have the heads behind
the sequence: [tokens, heads, head dimension], with a batch of one before for memory-efficient
attention. Without offsets they have a batch of sequences of one length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import torch

from ...machine.unsupported import unsupported
from ..op_call import OpCall, named_arguments
from ..registry import Implementation, op
from . import efficient, flash
from .reference import Attention, empty_results, forward, gradients_of

_FOLDER: Final = "aten/src/ATen/native/transformers/cuda"
_aten: Final = torch.ops.aten
_REFUSED: Final = ("bias", "alibi_slopes", "block_table", "seqlen_k", "window_size")
_FROM_THE_END: Final = 2
"""The type of a causal mask in which the last query sees all keys."""

_UNLIMITED: Final = 2**31


class _Sequence(NamedTuple):
    """The place of a sequence.

    Args:
        attention: of this sequence, [1, heads, sequence, head dimension].
        queries: index of its queries in tensors that are laid out as the query.
        keys: index of its keys.
    """

    attention: Attention
    queries: Any
    keys: Any


def _sequences(op: Any, named: dict[str, Any]) -> Iterator[_Sequence]:
    for name in _REFUSED:
        if named.get(name) is not None:
            raise unsupported(f"{op} with {name}")
    queries = _indices(named["query"], named.get("cum_seq_q", named.get("cu_seqlens_q")))
    keys = _indices(named["key"], named.get("cum_seq_k", named.get("cu_seqlens_k")))
    used = named.get("seqused_k")
    seed = _seed(named)
    for number, (of_query, of_key) in enumerate(zip(queries, keys, strict=True)):
        query, key, value = (
            named[name][index].transpose(0, 1).unsqueeze(0)
            for name, index in (("query", of_query), ("key", of_key), ("value", of_key))
        )
        if used is not None:
            key, value = (one[:, :, : int(used[number])] for one in (key, value))
        bias = _mask(named, query.shape[2], key.shape[2])
        dropout, scale = named["dropout_p"], named["scale"]
        attention = Attention(query, key, value, bias, dropout, False, scale, seed + number)
        yield _Sequence(attention, of_query, of_key)


def _indices(tensor: torch.Tensor, offsets: torch.Tensor | None) -> list[Any]:
    """The indices of the sequences in a tensor."""
    if offsets is None:
        return list(range(len(tensor)))
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return rows if tensor.dim() == 3 else [(0, part) for part in rows]


def _seed(named: dict[str, Any]) -> int:
    """Of the dropout: a new one in a forward pass, that of the forward pass in a backward pass."""
    if not named["dropout_p"]:
        return 0
    state = named.get("rng_state", named.get("philox_seed"))
    return int(torch.randint(2**62, ()) if state is None else state.view(torch.int64).view(-1)[0])


def _mask(named: dict[str, Any], queries: int, keys: int) -> torch.Tensor | None:
    """The bias of the scores: 0 for keys that a query sees; None if it sees all."""
    kind = named.get("custom_mask_type")
    causal = bool(named.get("is_causal", kind))
    left, right = (named.get(f"window_size_{side}") for side in ("left", "right"))
    if not causal and all(size is None or size < 0 for size in (left, right)):
        return None
    left = _UNLIMITED if left is None or left < 0 else left
    right = 0 if causal else _UNLIMITED if right is None or right < 0 else right
    shift = keys - queries if kind in (None, _FROM_THE_END) else 0
    distance = torch.arange(keys) - torch.arange(queries).unsqueeze(1) - shift
    seen = (distance <= right) & (distance >= -left)
    return torch.zeros(queries, keys).masked_fill_(~seen, float("-inf"))


def _forward_reference(op: Any) -> Implementation:
    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        named = named_arguments(op, args, kwargs)
        results = empty_results(op, args, kwargs)
        output, logsumexp, state, other = results[:4]
        logsumexp.fill_(float("inf"))
        for tensor in (state, other):
            tensor.view(torch.int64).zero_()
        for number, (attention, queries, _) in enumerate(_sequences(op, named)):
            result, sums = forward(attention)
            output[queries] = result[0].transpose(0, 1)
            rows = logsumexp[:, queries] if logsumexp.dim() == 2 else logsumexp[number]
            rows[:, : sums.shape[2]] = sums[0]
            if not number:
                state.view(torch.int64).view(-1)[0] = attention.seed
        return results

    return reference


def _backward_reference(op: Any) -> Implementation:
    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        named = named_arguments(op, args, kwargs)
        results = empty_results(op, args, kwargs)
        for attention, queries, keys in _sequences(op, named):
            gradient = args[0][queries].transpose(0, 1).unsqueeze(0)
            indices = queries, keys, keys
            values = gradients_of(attention, gradient)
            for result, index, value in zip(results, indices, values, strict=False):
                result[index] = value[0].transpose(0, 1)
        return results

    return reference


_flash_forward: Final = _forward_reference(_aten._flash_attention_forward.default)


def _flash_into(out: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result, logsumexp, *_ = _flash_forward(*args, **kwargs)
    out.copy_(result)
    return cast("torch.Tensor", logsumexp)


@op(
    "aten::_flash_attention_forward_no_dropout_inplace",
    source=f"{_FOLDER}/flash_attn/flash_api.cpp",
    reference=_flash_into,
)
def _flash_into_memory(call: OpCall) -> None:
    """The random state is made, and dropped."""
    call.alloc_outputs()
    _note_split_keys(call, *call.args[1:3])
    call.alloc_temps(flash.RANDOM_STATE)


def _note_split_keys(call: OpCall, query: torch.Tensor, key: torch.Tensor) -> None:
    """Keys in pages, and those of single queries of grouped heads, are shared out."""
    is_grouped = query.shape[-2] > key.shape[-2] and not call.argument("dropout_p")
    if (is_grouped and call.argument("max_q") == 1) or call.argument("block_table") is not None:
        call.unknown_workspace = "parts of the keys"


@op(
    "aten::_flash_attention_forward",
    source=f"{_FOLDER}/flash_attn/flash_api.cpp",
    reference=_flash_forward,
    cpu_outputs=frozenset() if flash.HAS_RNG_STATE else frozenset({2, 3}),
)
def _flash(call: OpCall) -> None:
    query, key, _, offsets = call.args[:4]
    output, logsumexp, rng_state, unused = call.result[:4]
    dropout = call.argument("dropout_p")
    call.alloc_outputs(output, logsumexp)
    if offsets is not None:
        _note_split_keys(call, query, key)
    elif not dropout:
        flash.alloc_split_keys(call, query.transpose(1, 2), key.transpose(1, 2))
    flash.alloc_random_state(call, rng_state, unused, dropout)


@op(
    "aten::_flash_attention_backward",
    source=f"{_FOLDER}/attention_backward.cu",
    reference=_backward_reference(_aten._flash_attention_backward.default),
)
def _flash_backward(call: OpCall) -> None:
    gradient, query, key, _, result, _, offsets = call.args[:7]
    call.alloc_contiguous(gradient, result)
    call.alloc_outputs()
    if offsets is None:
        batch, longest = query.shape[:2]
        rows = batch * (longest + -longest % flash.ROWS)
    else:
        batch = offsets.numel() - 1
        rows = query.shape[0] + batch * flash.ROWS
    flash.alloc_accumulators(call, query, key, batch, rows)


@op(
    "aten::_efficient_attention_forward",
    source=f"{_FOLDER}/attention.cu",
    reference=_forward_reference(_aten._efficient_attention_forward.default),
    cpu_outputs=frozenset({2, 3}),
)
def _efficient(call: OpCall) -> None:
    efficient.memory(call)


@op(
    "aten::_efficient_attention_backward",
    source=f"{_FOLDER}/attention_backward.cu",
    reference=_backward_reference(_aten._efficient_attention_backward.default),
)
def _efficient_backward(call: OpCall) -> None:
    gradient, query, key, value, _, result, offsets = call.args[:7]
    call.alloc_contiguous(gradient)
    call.alloc_outputs()
    sizes = (*query.shape[:2], key.shape[1])
    if offsets is not None:
        sizes = (offsets.numel() - 1, call.args[8], call.args[9])
    alloc = efficient.alloc_workspace
    alloc(call, query, value, result, sizes, has_dropout=bool(call.args[11]))
