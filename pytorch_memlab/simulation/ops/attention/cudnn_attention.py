"""The attention of cuDNN: ``aten/src/ATen/native/cudnn/MHA.cpp``."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from ..op_call import CUDNN_WORKSPACES, FLOAT, OpCall
from ..registry import estimated
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
    call.unknown_workspace = CUDNN_WORKSPACES


@_estimated(
    "aten::_scaled_dot_product_cudnn_attention_backward",
    reference=backward_reference(_BACKWARD),
)
def _backward_memory(call: OpCall) -> None:
    """CuDNN's frontend asks for this; what its engine asks for is not known."""
    if call.args[0].stride(-1) != 1:
        call.alloc_copy(call.args[0])
    call.alloc_outputs()
    query = call.args[1]
    batch, heads, queries, size = query.shape
    call.alloc_temp(batch * heads * queries * (size + 1) * FLOAT)
    call.unknown_workspace = CUDNN_WORKSPACES
