"""The attention of cuDNN: ``aten/src/ATen/native/cudnn/MHA.cpp``."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from ..core.op_call import CUDNN_WORKSPACES, FLOAT, OpCall
from ..core.registry import estimated
from .reference import backward_reference, forward_reference

_FORWARD: Final = torch.ops.aten._scaled_dot_product_cudnn_attention.default
_BACKWARD: Final = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

_estimated: Final = partial(estimated, source="aten/src/ATen/native/cudnn/MHA.cpp")


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
    logsumexp = None
    if compute_log_sumexp:
        logsumexp = query.new_empty((batch, heads, queries, 1), dtype=torch.float32)
    return (
        _like_query(query, value.shape[-1]),
        logsumexp,
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


@_estimated(
    "aten::_scaled_dot_product_cudnn_attention",
    reference=forward_reference(_FORWARD, _meta),
    meta=_meta,
)
def _memory(call: OpCall) -> None:
    result = call.result
    call.alloc_outputs(result[6], result[7], result[0], result[1])
    query, _key, value = call.args[:3]
    of_output = _in_tiles(query, value.shape[-1])
    call.leave_out(CUDNN_WORKSPACES, of_output + FLOAT * query.numel() // query.shape[-1])


@_estimated(
    "aten::_scaled_dot_product_cudnn_attention_backward",
    reference=backward_reference(_BACKWARD),
)
def _backward_memory(call: OpCall) -> None:
    """CuDNN's frontend asks for this; what its engine asks for is not known."""
    if call.args[0].stride(-1) != 1:
        call.alloc_copy(call.args[0])
    call.alloc_outputs()
    query, key, value = call.args[1:4]
    batch, heads, queries, size = query.shape
    call.alloc_temp(batch * heads * queries * (size + 1) * FLOAT)
    call.leave_out(CUDNN_WORKSPACES, _most_backward(query, key, value))


# Note [Bounds of cuDNN's attention]
# cuDNN's frontend (scaled_dot_product_flash_attention.h) asks its engine for the gradients of keys
# and values of each head of the queries, before heads of a group are added up, and for the matrix
# of gradients of scores, if that has at most CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT (256 MiB).
# What an engine accumulates with these is bounded by one number of 32 bits for each element of
# queries, keys, values and of the output, with sizes of heads and lengths rounded up to whole
# tiles. The engines are closed, so that tiles of 128 are an estimate: those of FlashAttention's
# backward pass (``mha_bwd`` in ``flash_attn/flash_api.cpp``).

_SCORES_LIMIT: Final = 256 << 20
_TILE: Final = 128


def _most_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Bytes of a workspace at most. See Note [Bounds of cuDNN's attention]."""
    batch, heads, queries, _size = query.shape
    operands = ((query, query), (query, value), (key, key), (value, value))
    accumulated = sum(_in_tiles(operand, other.shape[-1], heads) for operand, other in operands)
    scores = 2 * batch * heads * _up(queries) * _up(key.shape[2])
    return accumulated + min(scores, _SCORES_LIMIT)


def _in_tiles(tensor: torch.Tensor, size: int, heads: int = 0) -> int:
    """Bytes of a tensor in single precision, with another size of heads, in whole tiles."""
    batch, own_heads, length, _size = tensor.shape
    return FLOAT * batch * max(heads, own_heads) * _up(length) * _up(size)


def _up(length: int) -> int:
    return -(-length // _TILE) * _TILE
