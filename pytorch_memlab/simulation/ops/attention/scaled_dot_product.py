"""``scaled_dot_product_attention`` as CUDA runs it: one of four backends, on padded tensors.

``aten/src/ATen/native/transformers/attention.cpp`` prepares the tensors for each backend, above
autograd, so that padding is a node of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..registry import RELEASE, define
from .backends import Backend, Call, select

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
        if not _is_valid(query, key, value, attn_mask):
            return NotImplemented
        call = Call(gpu.model, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        return _RUN[select(call)](gpu, call, scale)


def _is_valid(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """True if PyTorch would not refuse the arguments, on any device (``validate_sdpa_input``)."""
    if not query.dtype == key.dtype == value.dtype or query.is_nested:
        return False
    if min(query.dim(), key.dim(), value.dim()) < 2:
        return False
    return mask is None or mask.dtype in (torch.bool, torch.float32, query.dtype)


def _flash(gpu: SimulatedGPU, call: Call, scale: float | None) -> Any:
    size = call.query.shape[-1]
    query, key, value = (_padded(tensor) for tensor in call[1:4])
    result, *others = _aten._scaled_dot_product_flash_attention.default(
        query,
        key,
        value,
        call.dropout,
        call.causal,
        False,
        scale=size**-0.5 if scale is None else scale,
    )
    _drop(others)
    return result if result.shape[-1] == size else result[..., :size]


def _efficient(gpu: SimulatedGPU, call: Call, scale: float | None) -> Any:
    mask = _added_mask(gpu, call)
    if mask is not None:
        batch, heads, queries, _ = call.query.shape
        mask = _aligned(mask).expand(batch, heads, queries, call.key.shape[2])
    return _aten._scaled_dot_product_efficient_attention.default(
        *call[1:4], mask, call.trains, call.dropout, call.causal, scale=scale
    )[0]


def _cudnn(gpu: SimulatedGPU, call: Call, scale: float | None) -> Any:
    result, *others = _aten._scaled_dot_product_cudnn_attention.default(
        *call[1:4],
        _added_mask(gpu, call),
        call.trains,
        call.dropout,
        call.causal,
        False,
        scale=scale,
    )
    _drop(others)
    return result


def _math(gpu: SimulatedGPU, call: Call, scale: float | None) -> Any:
    grouped = {"enable_gqa": call.grouped} if RELEASE >= (2, 5) else {}
    return _aten._scaled_dot_product_attention_math.default(
        *call[1:4],
        _added_mask(gpu, call),
        call.dropout,
        call.causal,
        None,
        scale=scale,
        **grouped,
    )[0]


def _drop(results: list[Any]) -> None:
    """Drop results as C++ drops those of a tuple: the first goes first."""
    while results:
        del results[0]


def _added_mask(gpu: SimulatedGPU, call: Call) -> Any:
    """The bias of the scores: 0 where a bool mask lets a key take part."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    options = {"dtype": call.query.dtype, "device": gpu.device}
    excluded = _aten.scalar_tensor.default(float("-inf"), **options)
    taking_part = _aten.scalar_tensor.default(0.0, **options)
    return _aten.where.self(mask, taking_part, excluded)


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


_RUN: Final[Mapping[Backend, Callable[..., Any]]] = {
    Backend.FLASH: _flash,
    Backend.EFFICIENT: _efficient,
    Backend.CUDNN: _cudnn,
    Backend.MATH: _math,
}

define("aten::scaled_dot_product_attention", cuda_dispatch=_attention)
define("aten::_fused_sdp_choice", touches_no_element=True)
