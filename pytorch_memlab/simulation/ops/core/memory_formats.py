"""The layout of tensors in memory, and the formats and types that CUDA's kernels choose by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._prims_common import (
    compute_elementwise_output_strides,
    get_computation_dtype,
    suggest_memory_format as suggest_memory_format,
)

LOW_PRECISION: Final = (torch.float16, torch.bfloat16)

acc_type: Final[Callable[[torch.dtype], torch.dtype]] = get_computation_dtype
"""The dtype in which CUDA accumulates a dtype: ``toAccumulateType``."""

is_dense: Final[Callable[[torch.Tensor], bool]] = (
    torch.ops.aten.is_non_overlapping_and_dense.default
)
"""True if the elements of a strided tensor lie side by side, each once, in any order."""

MAX_INT32: Final = 2**31 - 1

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def cudnn_conv_memory_format(tensor: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """``cudnn_conv_suggest_memory_format`` of ``aten/src/ATen/native/ConvUtils.h``."""
    if torch.float64 in (tensor.dtype, weight.dtype):
        return torch.contiguous_format
    wanted = _CHANNELS_LAST.get(weight.dim())
    if wanted in (suggest_memory_format(tensor), suggest_memory_format(weight)):
        return wanted or torch.contiguous_format
    return torch.contiguous_format


def has_channels_last(tensor: torch.Tensor) -> bool:
    """True if batch norm runs for channels last: ``batch_norm_use_channels_last_kernels``."""
    if tensor.numel() >= MAX_INT32:
        return False
    if tensor.is_contiguous() and tensor.stride(1) == 1:
        return True
    wanted = _CHANNELS_LAST.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted)


def contiguous_like(position: int) -> Callable[..., torch.Tensor]:
    """The meta kernel of an op whose output is as one of its arguments, contiguous."""

    def meta(*args: Any, **_options: Any) -> torch.Tensor:
        return torch.empty_like(args[position], memory_format=torch.contiguous_format)

    return meta


def laid_out_as(*positions: int) -> Callable[[tuple[Any, ...], Any], Any]:
    """Corrects the layout of what a ``TensorIterator`` makes of these arguments, in this order."""
    # The meta kernel is a decomposition (``torch/_decomp``), whose ops take them in another order.

    def correct(args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        operands = (args[position] for position in positions)  # a number may stand for a tensor
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        strides = compute_elementwise_output_strides(*torch.broadcast_tensors(*tensors))
        return result.new_empty_strided(result.shape, strides)

    return correct


def laid_out_by(
    # takes the arguments with their first, the only tensor, on the meta device
    meta: Callable[..., Any],
    kernel: Callable[..., Any],  # computes the results
) -> Callable[..., Any]:
    """A kernel for the CPU whose results lie in memory as those of a meta kernel, as on CUDA."""

    def reference(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        results = kernel(tensor, *args, **kwargs)
        wanted = meta(on_meta(tensor), *args, **kwargs)
        if isinstance(results, torch.Tensor):
            return _laid_out(results, wanted)
        return tuple(map(_laid_out, results, wanted))

    return reference


def _laid_out(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if result.stride() == like.stride():
        return result
    return torch.empty_strided(like.shape, like.stride(), dtype=result.dtype).copy_(result)


def made_contiguous(args: tuple[Any, ...], result: Any) -> Any:
    """Corrects the layout of results that kernels make contiguous, and decompositions do not."""
    if isinstance(result, tuple):
        return tuple(made_contiguous(args, item) for item in result)
    return result if result is None else result.contiguous()


def can_view(tensor: torch.Tensor, shape: Sequence[int]) -> bool:
    """True if a tensor takes another shape without a copy."""
    try:
        tensor.view(shape)
    except RuntimeError:
        return False
    return True


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device that lies in memory as one does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
