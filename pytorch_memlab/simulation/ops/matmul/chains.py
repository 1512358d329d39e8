"""``multi_dot``: PyTorch's own but for the check of devices, which C++ cannot make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...machine import active
from ...machine.simulated_gpu import SimulatedGPU
from ..core.registry import define


def _check_devices(
    gpu: SimulatedGPU, tensors: Sequence[torch.Tensor], *, out: torch.Tensor | None = None
) -> Any:
    if len({tensor.dtype for tensor in tensors}) > 1:
        return NotImplemented
    for position, tensor in enumerate(tensors):
        if active.gpu_of(tensor) is not gpu:
            raise RuntimeError(
                "multi_dot(): all tensors must be on the same device but tensor 0 is on "
                f"{gpu.device} and tensor {position} on {tensor.device}"
            )
    if out is not None and active.gpu_of(out) is not gpu:
        raise RuntimeError(
            f"multi_dot(): expected out tensor to be on device {gpu.device} but got {out.device}"
        )
    return NotImplemented


define("aten::linalg_multi_dot", "aten::linalg_multi_dot.out", cuda_dispatch=_check_devices)
