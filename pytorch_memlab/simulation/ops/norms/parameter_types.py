"""Types of numbers of a norm's weight and bias: the CPU mixes some that CUDA's kernels do not."""

from __future__ import annotations

from typing import Final

import torch

_NAMES: Final = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
}
"""PyTorch's names of types of numbers, in errors."""


def refuse_mixed_types(tensor: torch.Tensor, *parameters: torch.Tensor | None) -> None:
    """Fail as ``data_ptr`` does in the kernels of layer norm and group norm.

    Raises:
        RuntimeError: a parameter has another type than the tensor.
    """
    wanted = _NAMES.get(tensor.dtype)
    if wanted is None or not tensor.numel():
        return
    for parameter in parameters:
        if parameter is not None and parameter.dtype != tensor.dtype:
            name = _NAMES.get(parameter.dtype, str(parameter.dtype))
            raise RuntimeError(f"expected scalar type {wanted} but found {name}")
