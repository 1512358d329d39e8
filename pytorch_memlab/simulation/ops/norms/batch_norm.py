"""Batch norm: whether cuDNN or PyTorch runs it, and what PyTorch's own kernels return.

``aten/src/ATen/native/Normalization.cpp`` chooses; ``native/cuda/Normalization.cu`` tells what
PyTorch's kernels keep. cuDNN's are in ``cudnn_batch_norm.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..memory_formats import acc_type, suggest_memory_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...machine.simulated_gpu import SimulatedGPU

    Tensors = tuple[torch.Tensor, ...]

_MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
"""Largest batch that cuDNN's kernels take, by whether it trains."""

_INT32: Final = 2**31 - 1
_aten: Final = torch.ops.aten


def _implementation(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not _is_for_cudnn(tensor, weight, bias, mean, var, training):
        return NotImplemented
    results = _aten.cudnn_batch_norm.default(
        tensor.contiguous(memory_format=suggest_memory_format(tensor)),
        *(None if one is None else one.contiguous() for one in (weight, bias, mean, var)),
        training,
        momentum,
        eps,
    )
    return (*results, 1)


def _is_for_cudnn(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
) -> bool:
    """Whether cuDNN normalizes: the conditions of ``_select_batch_norm_backend``."""
    if not torch._C._get_cudnn_enabled() or weight is None or bias is None:
        return False
    if torch.bfloat16 in (tensor.dtype, weight.dtype):
        return False
    if tensor.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    has_statistics = mean is not None and var is not None
    if not has_statistics and not (mean is None and var is None and training):
        return False
    return (
        tensor.dim() >= 3
        and tensor.shape[0] <= _MOST_SAMPLES[training]
        and 0 < tensor.numel() < _INT32
    )


CHOICES: Final[Mapping[str, Callable[..., Any]]] = {"aten::_batch_norm_impl_index": _implementation}
"""What ``choices.py`` has of this family."""


def native(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """``native_batch_norm`` as CUDA returns it, computed on the host."""
    wide = acc_type(tensor.dtype)
    running = [_wide(one, wide) for one in (mean, var)]
    result, used_mean, used_deviation = _aten.native_batch_norm.default(
        tensor.to(wide), _wide(weight, wide), _wide(bias, wide), *running, training, momentum, eps
    )
    if training:
        for kept, updated in zip((mean, var), running, strict=True):
            if kept is not None and kept is not updated:
                kept.copy_(updated)
    else:
        used_mean = running[0].clone()
        used_deviation = (running[1] + eps).rsqrt()
    return torch.empty_like(tensor).copy_(result), used_mean, used_deviation


def native_shapes(tensor: torch.Tensor, *_arguments: Any) -> Tensors:
    """Shapes of what ``native`` returns."""
    dtype = acc_type(tensor.dtype)
    statistics = (tensor.new_empty(tensor.shape[1], dtype=dtype) for _ in range(2))
    return torch.empty_like(tensor), *statistics


def native_backward(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    used_mean: torch.Tensor | None,
    used_deviation: torch.Tensor | None,
    training: bool,
    eps: float,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """``native_batch_norm_backward`` computed on the host in the dtype that CUDA accumulates in."""
    wide = acc_type(tensor.dtype)
    results = _aten.native_batch_norm_backward.default(
        *(
            _wide(one, wide)
            for one in (gradient, tensor, weight, mean, var, used_mean, used_deviation)
        ),
        training,
        eps,
        mask,
    )
    likes = (tensor, *(tensor if weight is None else weight,) * 2)
    return tuple(
        None if result is None else result.to(like.dtype)
        for result, like in zip(results, likes, strict=True)
    )


def _wide(tensor: torch.Tensor | None, dtype: torch.dtype) -> Any:
    return None if tensor is None else tensor.to(dtype)
