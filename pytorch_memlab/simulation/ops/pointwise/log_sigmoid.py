"""``logsigmoid``: a CPU keeps a buffer as large as the input for the backward pass, CUDA none.

``aten/src/ATen/native/cuda/Activation.cpp`` returns the buffer without elements.
"""

from __future__ import annotations

import torch


def forward(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``log_sigmoid_forward`` as CUDA returns it, on the host or the meta device."""
    result, _ = torch.ops.aten.log_sigmoid_forward.default(tensor)
    return result, tensor.new_empty(0)


def backward(gradient: torch.Tensor, tensor: torch.Tensor, _buffer: torch.Tensor) -> torch.Tensor:
    """``log_sigmoid_backward`` computed on the host, whose kernel reads the buffer."""
    _, buffer = torch.ops.aten.log_sigmoid_forward.default(tensor)
    found: torch.Tensor = torch.ops.aten.log_sigmoid_backward.default(gradient, tensor, buffer)
    return found
