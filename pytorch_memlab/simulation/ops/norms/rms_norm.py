"""RMS norm: one kernel on CUDA, since PyTorch 2.9; many ops on a CPU.

The op is composite where a device has no kernel of it: with one on the CPU, autograd keeps it
whole, and its node saves what CUDA's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ..memory_formats import acc_type
from ..op_call import OpCall
from ..registry import op
from .layer_norm import SOURCE, alloc_weight_sums


def _reference(
    tensor: torch.Tensor, size: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = tensor.to(acc_type(tensor.dtype))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = (wide.pow(2).mean(_dims(size), keepdim=True) + least).rsqrt()
    result = wide * rstd
    if weight is not None:
        result = result * weight
    return result.to(tensor.dtype).contiguous(), rstd.contiguous()


def _backward_reference(
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


def _memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[0], call.argument(2, "weight"))


def _backward_memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[1], call.argument(4, "weight"))
    call.alloc_outputs()
    alloc_weight_sums(call, call.result[1])


if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
    for _name, _on_gpu, _values in (
        ("aten::_fused_rms_norm", _memory, _reference),
        ("aten::_fused_rms_norm_backward", _backward_memory, _backward_reference),
    ):
        op(_name, source=SOURCE, reference=_values, meta=_values, cpu_kernel=_values)(_on_gpu)
