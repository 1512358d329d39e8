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
    tensor, weight, training = args[0], args[1], args[5]
    result, *saved = native(*args)
    if not training:
        saved = [weight.new_empty(0) for _mean_and_invstd in range(2)]
    # The reserve space: an estimate, as only cuDNN tells its size; without an activation fused
    # into the op there is nothing to keep.
    reserve = tensor.new_empty(0, dtype=torch.uint8)
    result = result.contiguous(memory_format=suggest_memory_format(tensor))
    return result, *(one.to(weight.dtype) for one in saved), reserve


@op(
    "aten::cudnn_batch_norm",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_reference,
    meta=_reference,
    writes=(3, 4),
)
def _memory(call: OpCall) -> None:
    if call.argument(5, "training"):
        call.unknown_workspace = CUDNN_WORKSPACES


def _backward_reference(
    tensor: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, *others: Any
) -> Tensors:
    args = (grad_output, tensor, weight, *others[:4], True, others[4], [True] * 3)
    grad_input, *of_weights = native_backward(*args)
    grad_input = grad_input.contiguous(memory_format=suggest_memory_format(tensor))
    return grad_input, *of_weights


@op(
    "aten::cudnn_batch_norm_backward",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_backward_reference,
    meta=_backward_reference,
)
def _backward_memory(call: OpCall) -> None:
    tensor, grad_output = call.args[:2]
    alloc_copy_into(call, grad_output, suggest_memory_format(tensor))
    call.unknown_workspace = CUDNN_WORKSPACES
