"""The attention of cuDNN: ``aten/src/ATen/native/cudnn/MHA.cpp``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..convolution.cudnn import CUDNN_WORKSPACES
from ..registry import Provenance, op
from .reference import Attention, copy_into, forward, input_gradients, new_seed

if TYPE_CHECKING:
    from ..op_call import OpCall

_SOURCE: Final = "aten/src/ATen/native/cudnn/MHA.cpp"
_FLOAT: Final = 4


def _reference(
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
    results = _meta(query, key, value, attn_bias, compute_log_sumexp)
    attention = Attention(
        query, key, value, attn_bias, dropout_p, is_causal, scale, new_seed(dropout_p)
    )
    result, logsumexp = forward(attention)
    copy_into(results, (result, logsumexp.unsqueeze(-1)))
    results[6].fill_(attention.seed)
    results[7].zero_()
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


@op(
    "aten::_scaled_dot_product_cudnn_attention",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_reference,
    meta=_meta,
)
def _memory(call: OpCall) -> None:
    result = call.result
    call.alloc_outputs(result[6], result[7], result[0], result[1])
    call.unknown_workspace = CUDNN_WORKSPACES


def _backward_reference(
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
    seed = int(philox_seed) if dropout_p else 0
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    return input_gradients(attention, grad_out, out, logsumexp.squeeze(-1))


@op(
    "aten::_scaled_dot_product_cudnn_attention_backward",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_backward_reference,
)
def _backward_memory(call: OpCall) -> None:
    """CuDNN's frontend asks for this; what its engine asks for is not known."""
    if call.args[0].stride(-1) != 1:
        call.alloc_copy(call.args[0])
    call.alloc_outputs()
    query = call.args[1]
    batch, heads, queries, size = query.shape
    call.alloc_temp(batch * heads * queries * (size + 1) * _FLOAT)
    call.unknown_workspace = CUDNN_WORKSPACES
