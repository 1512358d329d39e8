"""``logsigmoid``: a CPU keeps a buffer as large as the input for the backward pass, CUDA none.

``aten/src/ATen/native/cuda/Activation.cpp`` returns the buffer without elements.
"""

from __future__ import annotations

from typing import Any

import torch

from ..registry import define


def _reference(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result, _ = torch.ops.aten.log_sigmoid_forward.default(tensor)
    return result, tensor.new_empty(0)


def _backward_reference(
    grad_output: torch.Tensor, tensor: torch.Tensor, _buffer: torch.Tensor
) -> Any:
    _, buffer = torch.ops.aten.log_sigmoid_forward.default(tensor)
    return torch.ops.aten.log_sigmoid_backward.default(grad_output, tensor, buffer)


define("aten::log_sigmoid_forward", reference=_reference, meta=_reference)
define("aten::log_sigmoid_backward", reference=_backward_reference)
