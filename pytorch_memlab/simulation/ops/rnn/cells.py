"""Cells of recurrent networks, which CUDA runs with a fused kernel for all gates.

As ``aten/src/ATen/native/RNN.cpp`` has them; the kernels are in ``fused_cells.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import define

if TYPE_CHECKING:
    from ...machine.simulated_gpu import SimulatedGPU

    Bias = torch.Tensor | None

_aten: Final = torch.ops.aten


def lstm_step(
    tensor: torch.Tensor,
    states: list[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Bias = None,
    b_hh: Bias = None,
    w_hr: Bias = None,
) -> list[torch.Tensor]:
    """A step of an LSTM as CUDA runs it."""
    hx, cx = states
    gates = _aten.matmul.default(tensor, w_ih.t()), _aten.matmul.default(hx, w_hh.t())
    hy, cy, _workspace = _aten._thnn_fused_lstm_cell.default(*gates, cx, b_ih, b_hh)
    return [hy if w_hr is None else _aten.matmul.default(hy, w_hr.t()), cy]


def gru_step(
    tensor: torch.Tensor,
    states: list[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Bias = None,
    b_hh: Bias = None,
) -> list[torch.Tensor]:
    """A step of a GRU as CUDA runs it: see ``lstm_step``."""
    (hx,) = states
    gates = _aten.matmul.default(tensor, w_ih.t()), _aten.matmul.default(hx, w_hh.t())
    return [_aten._thnn_fused_gru_cell.default(*gates, hx, b_ih, b_hh)[0]]


def _lstm_cell(
    gpu: SimulatedGPU, tensor: torch.Tensor, hx: list[torch.Tensor], *weights: Any
) -> Any:
    return tuple(lstm_step(tensor, hx, *weights))


def _gru_cell(gpu: SimulatedGPU, tensor: torch.Tensor, hx: torch.Tensor, *weights: Any) -> Any:
    return gru_step(tensor, [hx], *weights)[0]


define("aten::lstm_cell", cuda_dispatch=_lstm_cell)
define("aten::gru_cell", cuda_dispatch=_gru_cell)
