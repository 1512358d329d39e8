"""Ops that PyTorch has no meta kernel of: the shapes of what they return on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def like_first(tensor: torch.Tensor, *_others: Any, **_options: Any) -> torch.Tensor:
    """As large as the first argument, contiguous: ``Distributions.cpp``."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def like_second(
    _gradient: torch.Tensor, tensor: torch.Tensor, *_others: Any, **_options: Any
) -> torch.Tensor:
    """As large as the second argument, contiguous: as gradients of losses."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def quantized(tensor: torch.Tensor, *_parameters: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Simulated quantization: ``FakeQuantPerTensorAffine.cpp``."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


def joined_rows(
    dense: torch.Tensor, _offsets: Sequence[torch.Tensor], count: int | None = None
) -> torch.Tensor:
    """Rows without their padding: ``NestedTensorTransformerFunctions.cu``."""
    if count is None:
        raise NotImplementedError
    return dense.new_empty(count, dense.shape[-1])


SHAPES: Final[Mapping[str, Callable[..., Any]]] = {
    "_sample_dirichlet": like_first,
    "_standard_gamma": like_first,
    "_dirichlet_grad": like_first,
    "multi_margin_loss_backward": like_second,
    "multilabel_margin_loss_backward": like_second,
    "fractional_max_pool3d_backward": like_second,
    "fake_quantize_per_tensor_affine_cachemask": quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": quantized,
    "fake_quantize_per_channel_affine_cachemask": quantized,
    "_padded_dense_to_jagged_forward": joined_rows,
}
"""By the op's name: a function of its arguments on the meta device."""
