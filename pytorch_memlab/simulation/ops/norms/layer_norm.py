"""Layer norm, RMS norm and weight norm, which CUDA accumulates half precision of in single.

A CPU keeps the statistics of layer norm in the type of the weight. An RMS norm is one kernel on
CUDA, since PyTorch 2.9, and many ops on a CPU: the op is composite where a device has no kernel of
it. With one on the CPU, autograd keeps it whole, and its node saves what CUDA's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from ..core.memory_formats import acc_type, made_contiguous
from ..core.op_call import OpCall
from ..core.reduction_workspace import alloc_column_sums_workspace
from ..core.registry import define, op
from .parameter_types import refuse_mixed_types

_SOURCE: Final = "aten/src/ATen/native/cuda/layer_norm_kernel.cu"

_COLUMNS: Final = 32
"""Columns that a block of threads sums over, and rows that it takes at least."""

# ``LaunchGammaBetaBackwardCUDAKernel``: rows above which parts of sums get a buffer, and its
# ``max_grid_size``.
_TALL: Final = 64 * 1024
_MOST_BLOCKS: Final = 64 * 1024 // 2

_aten: Final = torch.ops.aten


def _reference(
    tensor: torch.Tensor,
    size: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *others: Any,
) -> tuple[torch.Tensor, ...]:
    refuse_mixed_types(tensor, weight, bias)
    result, mean, rstd = _aten.native_layer_norm.default(tensor, size, weight, bias, *others)
    dtype = acc_type(tensor.dtype)
    return result, mean.to(dtype), rstd.to(dtype)


@op("aten::native_layer_norm", source=_SOURCE, values=_reference)
def _memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[0], call.argument("weight"), call.argument("bias"))


def _backward_reference(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    size: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *others: Any,
) -> Any:
    dtype = tensor.dtype if weight is None else weight.dtype
    return _aten.native_layer_norm_backward.default(
        grad_output, tensor, size, mean.to(dtype), rstd.to(dtype), weight, *others
    )


@op(
    "aten::native_layer_norm_backward",
    source=_SOURCE,
    reference=_backward_reference,
    corrects_meta=made_contiguous,
)
def _backward_memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[1], call.argument("weight"), call.argument("bias"))
    call.alloc_outputs()
    _alloc_weight_sums(call, *call.result[1:])


def _alloc_weight_sums(call: OpCall, *weight_gradients: torch.Tensor | None) -> None:
    """The gradients of weights that many rows add up to are summed in two steps."""
    grad_output, tensor, size = call.args[:3]
    columns = prod(size)
    if not tensor.numel():
        return
    rows = tensor.numel() // columns
    call.alloc_contiguous(grad_output)
    sums = [weight for weight in weight_gradients if weight is not None and weight.numel()]
    if not sums or rows <= _TALL or not _is_narrow(call.model, columns):
        return
    blocks = min(_MOST_BLOCKS // -(-columns // _COLUMNS), -(-rows // _COLUMNS))
    for weight in sums:
        call.alloc_temp(blocks * weight.shape[-1] * weight.element_size())
    for weight in sums:
        with call.scope():  # the sum takes the place of a weight's gradient made before
            call.alloc_temp(weight.shape[-1] * weight.element_size())
            alloc_column_sums_workspace(call, blocks, weight.shape[-1], weight.dtype)


@decision
def _is_narrow(gpu: GPU, columns: int) -> bool:
    """True if blocks of threads for all columns leave most of the GPU idle."""
    return columns // _COLUMNS < gpu.multi_processor_count // 2


def _rms_norm(
    tensor: torch.Tensor, size: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = tensor.to(acc_type(tensor.dtype))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = (wide.pow(2).mean(_dims(size), keepdim=True) + least).rsqrt()
    result = wide * rstd
    if weight is not None:
        result = result * weight
    return result.to(tensor.dtype).contiguous(), rstd.contiguous()


def _rms_norm_backward(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    size: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    wide, grad = tensor.to(rstd.dtype), grad_output.to(rstd.dtype)
    grad_weight = None
    if mask[1] and weight is not None:
        rows = (grad * wide * rstd).reshape(-1, prod(size))
        grad_weight = rows.sum(0).view(weight.shape).to(weight.dtype)
    if not mask[0]:
        return None, grad_weight
    if weight is not None:
        grad = grad * weight
    mean = (grad * wide).mean(_dims(size), keepdim=True)
    grad_input = (grad - wide * mean * rstd.pow(2)) * rstd
    return grad_input.to(tensor.dtype).contiguous(), grad_weight


def _dims(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(size), 0))


if hasattr(_aten, "_fused_rms_norm_backward"):
    for _name, _memory_of, _values in (
        ("aten::_fused_rms_norm", _memory, _rms_norm),
        ("aten::_fused_rms_norm_backward", _backward_memory, _rms_norm_backward),
    ):
        op(_name, source=_SOURCE, values=_values, cpu_kernel=_values)(_memory_of)


def _wide_norms(
    args: tuple[Any, ...], result: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """With norms in the type that CUDA sums in; the meta kernel takes the weight's."""
    weight, norms = result
    return weight, norms.to(acc_type(args[0].dtype))


define("aten::_weight_norm_interface", corrects_meta=_wide_norms)
