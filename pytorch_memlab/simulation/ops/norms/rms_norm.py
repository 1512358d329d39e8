"""RMS norm: one kernel on CUDA, since PyTorch 2.9; many ops on a CPU.

The op is composite where a device has no kernel of it: with one on the host, autograd keeps it
whole, and its node saves what CUDA's does (``aten/src/ATen/native/cuda/layer_norm_kernel.cu``).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from ..memory_formats import acc_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def forward(
    tensor: torch.Tensor,
    size: Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_fused_rms_norm`` computed on the host."""
    wide = tensor.to(acc_type(tensor.dtype))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    inverse = (wide.pow(2).mean(_dims(size), keepdim=True) + least).rsqrt()
    result = wide * inverse
    if weight is not None:
        result = result * weight
    return result.to(tensor.dtype).contiguous(), inverse


def shapes(tensor: torch.Tensor, size: Sequence[int], *_arguments: Any) -> tuple[torch.Tensor, ...]:
    """Shapes of what ``forward`` returns."""
    kept = (*tensor.shape[: tensor.dim() - len(size)], *(1 for _ in size))
    inverse = tensor.new_empty(kept, dtype=acc_type(tensor.dtype))
    return tensor.new_empty(tensor.shape), inverse


def backward(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    size: Sequence[int],
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """``_fused_rms_norm_backward`` computed on the host."""
    wide, given = tensor.to(inverse.dtype), gradient.to(inverse.dtype)
    of_weight = None
    if mask[1] and weight is not None:
        rows = (given * wide * inverse).reshape(-1, prod(size))
        of_weight = rows.sum(0).view(weight.shape).to(weight.dtype)
    if not mask[0]:
        return None, of_weight
    if weight is not None:
        given = given * weight
    mean = (given * wide).mean(_dims(size), keepdim=True)
    of_tensor = (given - wide * mean * inverse.pow(2)) * inverse
    return of_tensor.to(tensor.dtype).contiguous(), of_weight


def backward_shapes(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    size: Sequence[int],
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Shapes of what ``backward`` returns."""
    return (
        tensor.new_empty(tensor.shape) if mask[0] else None,
        weight.new_empty(weight.shape) if mask[1] and weight is not None else None,
    )


def _dims(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(size), 0))


_HAS_BACKWARD: Final = hasattr(torch.ops.aten, "_fused_rms_norm_backward")

KERNELS: Final[Mapping[str, Callable[..., Any]]] = (
    {"aten::_fused_rms_norm": forward, "aten::_fused_rms_norm_backward": backward}
    if _HAS_BACKWARD
    else {}
)
"""Ops that ``choices.py`` gives the host a kernel of."""
