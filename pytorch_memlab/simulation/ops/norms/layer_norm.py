"""Layer norm of half precision: CUDA keeps the rows' statistics in single precision.

``aten/src/ATen/native/cuda/layer_norm_kernel.cu``; a CPU keeps them in the type of the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import acc_type

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten: Final = torch.ops.aten


def forward(
    tensor: torch.Tensor,
    size: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """``native_layer_norm`` as CUDA returns it, on the host or the meta device."""
    result, mean, inverse = _aten.native_layer_norm.default(tensor, size, weight, bias, eps)
    dtype = acc_type(tensor.dtype)
    return result, mean.to(dtype), inverse.to(dtype)


def backward(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    size: Sequence[int],
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """``native_layer_norm_backward`` computed on the host, which keeps statistics its own way."""
    dtype = tensor.dtype if weight is None else weight.dtype
    found: tuple[torch.Tensor | None, ...] = _aten.native_layer_norm_backward.default(
        gradient, tensor, size, mean.to(dtype), inverse.to(dtype), weight, bias, mask
    )
    return found
