"""Softmax of half precision with a float32 result: CUDA converts within the kernel.

On a CPU the input is converted first, and its copy kept (``aten/src/ATen/native/SoftMax.cpp``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...machine.simulated_gpu import SimulatedGPU

_aten: Final = torch.ops.aten


def _converting(op: Any) -> Callable[..., Any]:
    def choose(
        gpu: SimulatedGPU, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> Any:
        if tensor.dtype != torch.float16 or dtype != torch.float32:
            return NotImplemented
        return op(tensor, dim, True)

    return choose


CHOICES: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::softmax.int": _converting(_aten._softmax.default),
    "aten::log_softmax.int": _converting(_aten._log_softmax.default),
}
"""What ``choices.py`` has of this family."""


def forward(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_softmax`` computed on the host, which does not convert within it."""
    result: torch.Tensor = _aten._softmax.default(_wide(tensor, half_to_float), dim, False)
    return result


def log_forward(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_log_softmax`` computed on the host: see ``forward``."""
    result: torch.Tensor = _aten._log_softmax.default(_wide(tensor, half_to_float), dim, False)
    return result


def backward(
    gradient: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """``_softmax_backward_data`` computed on the host, which does not convert within it."""
    found = _aten._softmax_backward_data.default(gradient, result, dim, gradient.dtype)
    return found.to(dtype)  # type: ignore[no-any-return]


def log_backward(
    gradient: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """``_log_softmax_backward_data`` computed on the host: see ``backward``."""
    found = _aten._log_softmax_backward_data.default(gradient, result, dim, gradient.dtype)
    return found.to(dtype)  # type: ignore[no-any-return]


def _wide(tensor: torch.Tensor, half_to_float: bool) -> torch.Tensor:
    return tensor.float() if half_to_float else tensor
