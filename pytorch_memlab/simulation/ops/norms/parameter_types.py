"""Types of numbers of a norm's weight and bias: the CPU mixes some that CUDA's kernels do not."""

from __future__ import annotations

from typing import Final

import torch

from ..core.memory_formats import acc_type

_NAMES: Final = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
}
"""PyTorch's names of types of numbers, in errors."""


def refuse_mixed_types(tensor: torch.Tensor, *parameters: torch.Tensor | None) -> None:
    """Fail as ``data_ptr`` does in the kernels of layer norm and group norm."""
    # Raises RuntimeError if a parameter has another type than the tensor.
    wanted = _NAMES.get(tensor.dtype)
    if wanted is None or not tensor.numel():
        return
    for parameter in parameters:
        if parameter is not None and parameter.dtype != tensor.dtype:
            name = _NAMES.get(parameter.dtype, str(parameter.dtype))
            raise RuntimeError(f"expected scalar type {wanted} but found {name}")


def refuse_mixed_statistics(tensor: torch.Tensor, **parameters: torch.Tensor | None) -> None:
    """Fail as the kernel that makes all gradients of a batch norm at once."""
    # It takes parameters of one type, which the first of them decides: that of the tensor, or the
    # one that CUDA accumulates in. Raises RuntimeError if a parameter has another type.
    dtypes = {
        name: parameter.dtype for name, parameter in parameters.items() if parameter is not None
    }
    first = next(iter(dtypes.values()), tensor.dtype)
    wanted = tensor.dtype if first == tensor.dtype else acc_type(tensor.dtype)
    for name, dtype in dtypes.items():
        if dtype != wanted:
            raise RuntimeError(
                f"Expected {name} to have type {_NAMES.get(wanted, wanted)} but got "
                f"{_NAMES.get(dtype, dtype)}"
            )
