"""``matrix_rank`` with ``out=``, which PyTorch does not write to below a dispatch mode.

``matrix_rank_impl`` of ``aten/src/ATen/native/LinearAlgebra.cpp`` returns a new tensor there. Here
run the ops that it runs otherwise, in its order.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..core.cuda_dispatch import refuse_cpu_tensors
from ..core.registry import define, resize_output

_aten: Final = torch.ops.aten


def _rank_into(
    gpu: SimulatedGPU,
    matrix: torch.Tensor,
    *,
    atol: Any = None,
    rtol: Any = None,
    hermitian: bool = False,
    out: torch.Tensor,
) -> Any:
    if matrix.dim() < 2 or out.is_complex() or out.dtype == torch.bool:
        return NotImplemented  # PyTorch refuses them in its words
    refuse_cpu_tensors(_aten.linalg_matrix_rank.default, gpu, out)
    atol, rtol = _tolerances(gpu, matrix, atol, rtol)
    resize_output(out, matrix.shape[:-2])
    if not matrix.numel():
        return out.fill_(0)
    if hermitian:
        values = torch.linalg.eigvalsh(matrix).abs()
        largest = values.amax(-1, keepdim=True)
    else:
        values = torch.linalg.svdvals(matrix)
        largest = values.narrow(-1, 0, 1)
    least = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * largest)
    return torch.sum(values > least, -1, out=out)


def _tolerances(
    gpu: SimulatedGPU, matrix: torch.Tensor, atol: Any, rtol: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``get_atol_rtol``: the relative one is zero by default if there is an absolute one."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": gpu.device}
    default = torch.finfo(matrix.dtype).eps * max(matrix.shape[-2:])
    if not isinstance(atol, torch.Tensor) and not isinstance(rtol, torch.Tensor):
        if rtol is None:
            rtol = 0.0 if atol else default
        return torch.full((), atol or 0.0, **options), torch.full((), rtol, **options)
    atol_argument = atol
    atol = torch.zeros((), **options) if atol_argument is None else atol_argument
    if rtol is None:
        rtol = torch.full((), default, **options)
        if atol_argument is not None:
            rtol = torch.where(atol_argument > 0, torch.zeros((), **options), rtol)
    return atol, rtol


define(
    "aten::linalg_matrix_rank.atol_rtol_tensor_out",
    "aten::linalg_matrix_rank.atol_rtol_float_out",
    cuda_dispatch=_rank_into,
)
