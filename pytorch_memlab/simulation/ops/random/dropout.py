"""Dropout: one fused kernel on CUDA, which keeps a mask of one byte for each element.

Feature and alpha dropout, dropout in place and that with a probability of 0 or 1 run the same ops
on CUDA as on a CPU (``aten/src/ATen/native/Dropout.cpp``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..registry import define, op

if TYPE_CHECKING:
    from ...machine.simulated_gpu import SimulatedGPU
    from ..op_call import OpCall


def _dropout(gpu: SimulatedGPU, tensor: torch.Tensor, p: float, train: bool) -> Any:
    if not train or not 0 < p < 1 or not tensor.numel():
        return NotImplemented
    return torch.ops.aten.native_dropout.default(tensor, p, train)[0]


define("aten::dropout", cuda_dispatch=_dropout)


@op("aten::native_dropout", source="aten/src/ATen/native/cuda/Dropout.cu")
def _mask_first(call: OpCall) -> None:
    output, mask = call.result
    call.alloc_outputs(mask, output)
