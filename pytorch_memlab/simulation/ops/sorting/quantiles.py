"""Quantiles: PyTorch's own but for the checks of devices, which C++ cannot make."""

from __future__ import annotations

from typing import Any

import torch

from ...machine import active
from ...machine.simulated_gpu import SimulatedGPU
from ..core.registry import define


def _check_devices(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    q: torch.Tensor | float,
    *_how: Any,
    out: torch.Tensor | None = None,
    **_more: Any,
) -> Any:
    """PyTorch looks at the dtypes first: it finds those that do not fit itself."""
    for name, other in (("q", q), ("out", out)):
        if not isinstance(other, torch.Tensor):
            continue
        if other.dtype != tensor.dtype:
            break
        if active.gpu_of(other) is not gpu:
            raise RuntimeError(
                f"quantile() {name} tensor must be on the same device as the input tensor"
            )
    return NotImplemented


define(
    *(
        f"aten::{name}{overload}"
        for name in ("quantile", "nanquantile")
        for overload in ("", ".out", ".scalar_out")
    ),
    cuda_dispatch=_check_devices,
)
