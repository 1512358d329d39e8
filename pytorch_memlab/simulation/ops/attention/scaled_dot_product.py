"""``scaled_dot_product_attention`` as CUDA runs it: one of four backends, on padded tensors.

``aten/src/ATen/native/transformers/attention.cpp`` prepares the tensors for each backend, above
autograd, so that padding is a node of the graph.

Multi-head attention of modules in evaluation is one op, the fast path that CUDA takes:
``aten/src/ATen/native/transformers/cuda/attention.cu``. Where a fused attention can run, it stands
between two projections. Else matrices are multiplied around a softmax, in the storage of the
query: the same calls that the CPU's kernel makes (``attention.cpp``), so that one runs.
An encoder layer (``transformer.cpp``) has one function for every device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from ...machine.refused_calls import unsupported
from ...machine.simulated_gpu import SimulatedGPU
from ..core.cuda_dispatch import refuse_cpu_tensors
from ..core.op_call import OpCall
from ..core.registry import as_on_cpu, define, op
from .sdp_backend import AttentionCall, SDPBackend, is_any_enabled, is_any_fused_enabled, select

_ALIGNMENT: Final = 8
"""Elements: flash attention's head dimension and the rows of a mask are multiples of it."""

_aten: Final = torch.ops.aten


def _attention(
    gpu: SimulatedGPU,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    with torch._C.DisableTorchFunction():
        if _is_nested(query, key, value) or not _is_valid(query, key, value, attn_mask):
            return NotImplemented
        refuse_cpu_tensors(_aten.scaled_dot_product_attention.default, gpu, attn_mask)
        call = AttentionCall(
            gpu.model, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa
        )
        return _RUN[select(call)](gpu, call, scale)


def _is_valid(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """True if PyTorch would not refuse the arguments, on any device (``validate_sdpa_input``)."""
    if not query.dtype == key.dtype == value.dtype:
        return False
    if min(query.dim(), key.dim(), value.dim()) < 2:
        return False
    return mask is None or mask.dtype in (torch.bool, torch.float32, query.dtype)


def _flash(gpu: SimulatedGPU, call: AttentionCall, scale: float | None) -> Any:
    size = call.query.shape[-1]
    scale = size**-0.5 if scale is None else scale
    query, key, value = (_padded(tensor) for tensor in call[1:4])
    result, *others = _aten._scaled_dot_product_flash_attention.default(
        query, key, value, call.dropout, call.causal, False, scale=scale
    )
    _drop(others)
    return result if result.shape[-1] == size else result[..., :size]


def _efficient(gpu: SimulatedGPU, call: AttentionCall, scale: float | None) -> Any:
    mask = _added_mask(gpu, call)
    if mask is not None:
        batch, heads, queries, _ = call.query.shape
        mask = _aligned(mask).expand(batch, heads, queries, call.key.shape[2])
    return _aten._scaled_dot_product_efficient_attention.default(
        *call[1:4], mask, call.trains, call.dropout, call.causal, scale=scale
    )[0]


def _cudnn(gpu: SimulatedGPU, call: AttentionCall, scale: float | None) -> Any:
    options = call.trains, call.dropout, call.causal, False
    result, *others = _aten._scaled_dot_product_cudnn_attention.default(
        *call[1:4], _added_mask(gpu, call), *options, scale=scale
    )
    _drop(others)
    return result


def _math(gpu: SimulatedGPU, call: AttentionCall, scale: float | None) -> Any:
    return _aten._scaled_dot_product_attention_math.default(
        *call[1:4],
        _added_mask(gpu, call),
        call.dropout,
        call.causal,
        None,
        scale=scale,
        enable_gqa=call.grouped,
    )[0]


def _drop(results: list[Any]) -> None:
    """Drop results as C++ drops those of a tuple: the first goes first."""
    while results:
        del results[0]


def _added_mask(gpu: SimulatedGPU, call: AttentionCall) -> Any:
    """The bias of the scores: 0 where a bool mask lets a key take part."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    options = {"dtype": call.query.dtype, "device": gpu.device}
    excluded = _aten.scalar_tensor.default(float("-inf"), **options)
    taking_part = _aten.scalar_tensor.default(0.0, **options)
    bias = _aten.where.self(mask, taking_part, excluded)
    del taking_part  # it is made, and freed, within ``at::where``
    return bias


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with zeros up to a multiple of 8 in the last dimension."""
    missing = -tensor.shape[-1] % _ALIGNMENT
    return _aten.constant_pad_nd.default(tensor, [0, missing]) if missing else tensor


def _aligned(mask: torch.Tensor) -> Any:
    """A mask whose rows begin at multiples of 8 elements, if need be the part of a wider one."""
    *outer, last = mask.stride()
    if last == 1 and not any(stride % _ALIGNMENT for stride in outer):
        return mask
    size = mask.shape[-1]
    wide = _aten.constant_pad_nd.default(mask, [0, _ALIGNMENT - size % _ALIGNMENT])
    return _aten.slice.Tensor(wide, -1, 0, size)


_RUN: Final[Mapping[SDPBackend, Callable[..., Any]]] = {
    SDPBackend.FLASH: _flash,
    SDPBackend.EFFICIENT: _efficient,
    SDPBackend.CUDNN: _cudnn,
    SDPBackend.MATH: _math,
}

define("aten::scaled_dot_product_attention", cuda_dispatch=_attention, takes_nested=True)


def _choice(
    gpu: SimulatedGPU,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    enable_gqa: bool = False,
    **_scale: Any,
) -> Any:
    """``_fused_sdp_choice_cuda``: programs ask before they prepare tensors for a backend."""
    if _is_nested(query, key, value):
        return NotImplemented
    call = AttentionCall(gpu.model, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    return int(select(call))


def _is_nested(*tensors: torch.Tensor) -> bool:
    """True if one is nested, and the kernels that take such tensors are switched off."""
    if not any(tensor.is_nested for tensor in tensors):
        return False
    if is_any_enabled() and is_any_fused_enabled():
        raise unsupported(
            "fused attention of nested tensors (sdpa_kernel(SDPBackend.MATH) has none)"
        )
    return True


define("aten::_fused_sdp_choice", composite=_choice, touches_no_element=True)


_HEAD_ALIGNMENT: Final = 8

_MOST_ELEMENTS: Final = 1024
_MOST_BYTES: Final = 4096
"""Of a row of scores that the threads of a warp keep in their registers.

``host_softmax`` in ``aten/src/ATen/native/cuda/SoftMax.cu`` has both bounds.
"""

_OF_SEQUENCE, _SCORES = 0, 4
"""A mask's type for ``(length, length)``, and the dimensions of the scores it is expanded to."""


def _native_attention(
    gpu: SimulatedGPU,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    *_options: Any,
    **_more: Any,
) -> Any:
    if mask is not None or need_weights or query is not key or key is not value:
        return NotImplemented
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    if not _fits_module(query, embed_dim, num_head, weights) or not is_any_enabled():
        return NotImplemented
    split = (query.shape[0], -1, num_head, embed_dim // num_head)
    heads = query.view(split).transpose(1, 2)
    call = AttentionCall(gpu.model, heads, heads, heads, None, 0.0, False, False)
    if select(call) is SDPBackend.MATH:
        return NotImplemented
    return _fused(query, split, weights), None


def _fits_module(
    query: torch.Tensor, embed_dim: int, num_head: int, weights: tuple[torch.Tensor, ...]
) -> bool:
    """True if the heads are aligned, and PyTorch would not refuse the shapes on any device."""
    return (
        not query.is_nested
        and query.dim() == 3
        and query.shape[2] == embed_dim
        and weights[0].shape == (3 * embed_dim, embed_dim)
        and weights[1].shape == (3 * embed_dim,)
        and embed_dim % (num_head * _HEAD_ALIGNMENT) == 0
    )


def _fused(
    query: torch.Tensor, split: tuple[int, ...], weights: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    projected = _aten.linear.default(query, *weights[:2])
    parts = [part.view(split).transpose(1, 2) for part in projected.chunk(3, -1)]
    attended = _aten.scaled_dot_product_attention.default(*parts)
    joined = attended.transpose(1, 2).reshape(query.shape[0], -1, query.shape[2])
    result: torch.Tensor = _aten.linear.default(joined, *weights[2:])
    # As C++ does, the last made goes first.
    del joined, attended
    del parts, projected
    return result


define("aten::_native_multi_head_attention", composite=_native_attention)
define(
    "aten::_transformer_encoder_layer_fwd",
    "aten::_nested_tensor_from_mask_left_aligned",
    composite=as_on_cpu,
)


def _heads_meta(
    projected: torch.Tensor, bias: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, ...]:
    batch, length = projected.shape[:2]
    size = bias.shape[0] // 3 // num_heads
    whole = projected.new_empty(3 * batch, num_heads, length, size)
    return tuple(whole[start : start + batch] for start in (0, batch, 2 * batch))


define(
    "aten::_transform_bias_rescale_qkv",
    source="aten/src/ATen/native/transformers/cuda/attention.cu",
    meta=_heads_meta,
)


@op(
    "aten::_masked_softmax",
    source="aten/src/ATen/native/cuda/SoftMax.cu",
    meta=lambda scores, *_others: torch.empty_like(scores),
)
def _masked_softmax_memory(call: OpCall) -> None:
    """Beyond registers, a softmax of scores filled with minus infinity."""
    # Its output takes the place of the one that was made first.
    scores: torch.Tensor = call.args[0]
    if _fits_registers(call, scores):
        return
    first = call.alloc_copy(scores)
    call.alloc_copy(scores)
    call.alloc_outputs(call.result)
    call.free_temp(first)


def _fits_registers(call: OpCall, scores: torch.Tensor) -> bool:
    mask: torch.Tensor = call.args[1]
    dim = call.argument("dim")
    if dim is not None and dim < scores.dim() - 1:
        return False
    is_square = call.argument("mask_type") == _OF_SEQUENCE and mask.dim() != scores.dim()
    if is_square and scores.dim() == _SCORES:
        mask = mask.expand(scores.shape)
    size = scores.shape[-1] if scores.dim() else 1
    return (
        size <= _MOST_ELEMENTS
        and size * scores.element_size() <= _MOST_BYTES
        and mask.is_contiguous()
    )
