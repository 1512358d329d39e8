"""Dropout: one fused kernel on CUDA, which keeps a mask of one byte for each element.

Feature and alpha dropout, dropout in place and that with a probability of 0 or 1 run the same ops
on CUDA as on a CPU (``aten/src/ATen/native/Dropout.cpp``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...machine.simulated_gpu import SimulatedGPU


def _dropout(gpu: SimulatedGPU, tensor: torch.Tensor, p: float, train: bool) -> Any:
    if not train or not 0 < p < 1 or not tensor.numel():
        return NotImplemented
    return torch.ops.aten.native_dropout.default(tensor, p, train)[0]


CHOICES: Final[Mapping[str, Callable[..., Any]]] = {"aten::dropout": _dropout}
"""What ``choices.py`` has of this family."""
