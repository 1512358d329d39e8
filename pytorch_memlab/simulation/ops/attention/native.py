"""Multi-head attention of modules in evaluation, whole: the fast path that CUDA takes.

``aten/src/ATen/native/transformers/cuda/attention.cu``: where a fused attention can run, it stands
between two projections. Else matrices are multiplied around a softmax, in the storage of the
query: the same calls that the host's kernel makes (``attention.cpp`` beside it), so that one runs.
An encoder layer (``transformer.cpp``) has one function for every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from .backends import Backend, is_any_enabled, select
from .rules import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...machine.simulated_gpu import SimulatedGPU

_HEAD_ALIGNMENT: Final = 8
_aten: Final = torch.ops.aten


def _attention(
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
    if not _fits(query, embed_dim, num_head, weights) or not is_any_enabled():
        return NotImplemented
    split = (query.shape[0], -1, num_head, embed_dim // num_head)
    heads = query.view(split).transpose(1, 2)
    call = Call(gpu.model, heads, heads, heads, None, 0.0, False, False)
    if select(call) is Backend.MATH:
        return NotImplemented
    return _fused(query, split, weights), None


def _fits(
    query: torch.Tensor, embed_dim: int, num_head: int, weights: tuple[torch.Tensor, ...]
) -> bool:
    """Whether the heads are aligned, and PyTorch would not refuse the shapes on any device."""
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


def heads_shapes(
    projected: torch.Tensor, bias: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, ...]:
    """Shapes of what ``_transform_bias_rescale_qkv`` returns."""
    batch, length = projected.shape[:2]
    size = bias.shape[0] // 3 // num_heads
    whole = projected.new_empty(3 * batch, num_heads, length, size)
    return tuple(whole[start : start + batch] for start in (0, batch, 2 * batch))


def masked_softmax_shape(scores: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    """Shape of what ``_masked_softmax`` returns."""
    return torch.empty_like(scores)


COMPOUND: Final[Mapping[str, Callable[..., Any] | None]] = {
    "aten::_native_multi_head_attention": _attention,
    "aten::_transformer_encoder_layer_fwd": None,
    "aten::_nested_tensor_from_mask_left_aligned": None,
}
"""What ``choices.py`` has of this family; each has a kernel on the host and on CUDA."""
