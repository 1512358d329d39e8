"""The batch norm of cuDNN: ``aten/src/ATen/native/cudnn/BatchNorm.cpp``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..convolution.cudnn import CUDNN_WORKSPACES, alloc_copy_into
from ..memory_formats import suggest_memory_format
from ..registry import Provenance, op
from .batch_norm import native, native_backward

if TYPE_CHECKING:
    from ..op_call import OpCall

    Tensors = tuple[torch.Tensor, ...]

_SOURCE: Final = "aten/src/ATen/native/cudnn/BatchNorm.cpp"


def _reference(*args: Any) -> Tensors:
    results = _meta(*args)
    for result, value in zip(results, native(*args), strict=False):
        if result.numel():
            result.copy_(value)
    return results


def _meta(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    *_others: Any,
) -> Tensors:
    channels = tensor.shape[1] if training else 0
    return (
        torch.empty_like(tensor, memory_format=suggest_memory_format(tensor)),
        weight.new_empty(channels),
        weight.new_empty(channels),
        # The reserve space: an estimate, as only cuDNN tells its size; without an activation
        # fused into the op there is nothing to keep.
        tensor.new_empty(0, dtype=torch.uint8),
    )


@op(
    "aten::cudnn_batch_norm",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_reference,
    meta=_meta,
    writes=(3, 4),
)
def _memory(call: OpCall) -> None:
    if call.argument(5, "training"):
        call.unknown_workspace = CUDNN_WORKSPACES


def _backward_reference(
    tensor: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    *others: Any,
) -> Tensors:
    results = _backward_meta(tensor, grad_output, weight)
    args = (grad_output, tensor, weight, *others[:4], True, others[4], [True] * 3)
    values = native_backward(*args)
    for result, value in zip(results, values, strict=True):
        if value is not None:
            result.copy_(value)
    return results


def _backward_meta(
    tensor: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, *_others: Any
) -> Tensors:
    grad_input = torch.empty_like(tensor, memory_format=suggest_memory_format(tensor))
    return grad_input, torch.empty_like(weight), torch.empty_like(weight)


@op(
    "aten::cudnn_batch_norm_backward",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_backward_reference,
    meta=_backward_meta,
)
def _backward_memory(call: OpCall) -> None:
    tensor, grad_output = call.args[:2]
    alloc_copy_into(call, grad_output, suggest_memory_format(tensor))
    call.unknown_workspace = CUDNN_WORKSPACES
