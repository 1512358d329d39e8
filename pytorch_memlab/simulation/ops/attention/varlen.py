"""Attention over sequences of several lengths, which lie one after another in one tensor.

Jagged tensors and ``torch.nn.attention.varlen`` call these ops. Their tensors have the heads behind
the sequence: [tokens, heads, head dimension], with a batch of one before for memory-efficient
attention. Without offsets they have a batch of sequences of one length.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final, cast

import torch

from ...machine.refused_calls import unsupported
from ..core.op_call import OpCall, named_arguments
from ..core.registry import op
from . import efficient, flash
from .reference import (
    Attention,
    SequenceGroup,
    backward_reference,
    empty_results,
    forward_reference,
)

_FOLDER: Final = "aten/src/ATen/native/transformers/cuda"
_aten: Final = torch.ops.aten
_FLASH: Final = _aten._flash_attention_forward.default
_EFFICIENT: Final = _aten._efficient_attention_forward.default
_REFUSED: Final = ("bias", "alibi_slopes", "block_table", "seqlen_k", "window_size")
_FROM_THE_END: Final = 2
"""The type of a causal mask in which the last query sees all keys."""

_UNLIMITED: Final = 2**31


def _sequences(op: Any, named: dict[str, Any], seed: int) -> Iterator[SequenceGroup]:
    for name in _REFUSED:
        if named.get(name) is not None:
            raise unsupported(f"{op} with {name}")
    queries = _indices(named["query"], named.get("cum_seq_q", named.get("cu_seqlens_q")))
    keys = _indices(named["key"], named.get("cum_seq_k", named.get("cu_seqlens_k")))
    used = named.get("seqused_k")
    for number, (of_query, of_key) in enumerate(zip(queries, keys, strict=True)):
        in_query, in_key = partial(_heads_first, of_query), partial(_heads_first, of_key)
        query, key, value = in_query(named["query"]), in_key(named["key"]), in_key(named["value"])
        if used is not None:
            key, value = (tensor[:, :, : int(used[number])] for tensor in (key, value))
        bias = _mask(named, query.shape[2], key.shape[2])
        options = (named["dropout_p"], False, named["scale"], seed + number)
        rows = partial(_rows, number, of_query)
        yield SequenceGroup(Attention(query, key, value, bias, *options), in_query, in_key, rows)


def _indices(tensor: torch.Tensor, offsets: torch.Tensor | None) -> list[Any]:
    """The indices of the sequences in a tensor."""
    if offsets is None:
        return list(range(len(tensor)))
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return rows if tensor.dim() == 3 else [(0, part) for part in rows]


def _heads_first(index: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A sequence as [1, heads, sequence, head dimension]."""
    return tensor[index].transpose(0, 1).unsqueeze(0)


def _rows(number: int, index: Any, logsumexp: torch.Tensor) -> torch.Tensor:
    """The part of a sequence in the logsumexp: of all tokens, or padded for each sequence."""
    return (logsumexp[:, index] if logsumexp.dim() == 2 else logsumexp[number]).unsqueeze(0)


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


def _of_sequences(query: torch.Tensor, offsets: torch.Tensor | None, most: Any) -> tuple[int, int]:
    """The number of sequences, and the queries of the longest."""
    return (len(query), query.shape[1]) if offsets is None else (len(offsets) - 1, most)


def _flash_meta(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """PyTorch 2.4 has no meta kernel of it."""
    named = named_arguments(_FLASH, args, kwargs)
    query = named["query"]
    batch, longest = _of_sequences(query, named["cum_seq_q"], named["max_q"])
    return (
        torch.empty_like(query),
        query.new_empty((batch, query.shape[-2], longest), dtype=torch.float32),
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
        query.new_empty(0),
    )


def _efficient_meta(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """PyTorch 2.4 has no meta kernel of it."""
    named = named_arguments(_EFFICIENT, args, kwargs)
    query, keys = named["query"], named["max_seqlen_k"]
    batch, longest = _of_sequences(query, named["cu_seqlens_q"], named["max_seqlen_q"])
    has_sums = named["compute_log_sumexp"]
    results = efficient.results_like(query, named["value"], batch, longest, has_sums)
    return *results, longest, named["key"].shape[1] if keys is None else keys


_FLASH_META: Final = (
    None
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_forward", "Meta")
    else _flash_meta
)
"""In later releases the logsumexp has another shape."""

_flash_forward: Final = forward_reference(
    _FLASH, _FLASH_META or partial(empty_results, _FLASH), _sequences
)


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
        call.leave_out("parts of the keys")


@op(
    "aten::_flash_attention_forward",
    source=f"{_FOLDER}/flash_attn/flash_api.cpp",
    reference=_flash_forward,
    meta=_FLASH_META,
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
    reference=backward_reference(_aten._flash_attention_backward.default, _sequences),
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
    reference=forward_reference(_EFFICIENT, _efficient_meta, _sequences),
    meta=_efficient_meta,
    cpu_outputs=frozenset({2, 3}),
)
def _efficient(call: OpCall) -> None:
    efficient.memory(call)


@op(
    "aten::_efficient_attention_backward",
    source=f"{_FOLDER}/attention_backward.cu",
    reference=backward_reference(_aten._efficient_attention_backward.default, _sequences),
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
