"""The kernels that compute all gates of a cell at once: ``aten/src/ATen/native/cuda/RNN.cu``."""

from __future__ import annotations

from typing import Final

import torch

from ..memory_formats import acc_type
from ..op_call import OpCall
from ..reduction_workspace import alloc_sum_workspace
from ..registry import op

Bias = torch.Tensor | None

_SOURCE: Final = "aten/src/ATen/native/cuda/RNN.cu"
_GRU_KEEPS: Final = 5


def _lstm(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, ...]:
    dtype = acc_type(input_gates.dtype)
    gates = input_gates.to(dtype) + hidden_gates.to(dtype)
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias.to(dtype) + hidden_bias.to(dtype)
    input_gate, forget_gate, cell_gate, output_gate = gates.chunk(4, 1)
    input_gate, forget_gate = input_gate.sigmoid(), forget_gate.sigmoid()
    cell_gate, output_gate = cell_gate.tanh(), output_gate.sigmoid()
    cy = forget_gate * cx.to(dtype) + input_gate * cell_gate
    hy = output_gate * cy.tanh()
    workspace = torch.cat([input_gate, forget_gate, cell_gate, output_gate], 1)
    states = (one.to(cx.dtype).contiguous() for one in (hy, cy))
    return *states, workspace.to(input_gates.dtype)


def _lstm_backward(
    grad_hy: Bias,
    grad_cy: Bias,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[Bias, ...]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = acc_type(workspace.dtype)
    input_gate, forget_gate, cell_gate, output_gate = workspace.to(dtype).chunk(4, 1)
    tanh_cy = cy.to(dtype).tanh()
    grad_hidden = torch.zeros_like(tanh_cy) if grad_hy is None else grad_hy.to(dtype)
    grad_cell = grad_hidden * output_gate * (1 - tanh_cy * tanh_cy)
    if grad_cy is not None:
        grad_cell = grad_cell + grad_cy.to(dtype)
    gates = torch.cat(
        [
            grad_cell * cell_gate * input_gate * (1 - input_gate),
            grad_cell * cx.to(dtype) * forget_gate * (1 - forget_gate),
            grad_cell * input_gate * (1 - cell_gate * cell_gate),
            grad_hidden * tanh_cy * output_gate * (1 - output_gate),
        ],
        1,
    ).to(workspace.dtype)
    grad_cx = (grad_cell * forget_gate).to(cx.dtype).contiguous()
    return gates, grad_cx, gates.sum(0) if has_bias else None


def _gru(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = acc_type(input_gates.dtype)
    wide = [input_gates.to(dtype), hidden_gates.to(dtype)]
    if input_bias is not None and hidden_bias is not None:
        wide = [wide[0] + input_bias.to(dtype), wide[1] + hidden_bias.to(dtype)]
    (reset_i, update_i, new_i), (reset_h, update_h, new_h) = (one.chunk(3, 1) for one in wide)
    reset, update = (reset_i + reset_h).sigmoid(), (update_i + update_h).sigmoid()
    new = (new_i + reset * new_h).tanh()
    hidden = hx.to(dtype)
    hy = new + update * (hidden - new)
    workspace = torch.cat([reset, update, new, hidden, new_h], 1).to(hx.dtype)
    return hy.to(hx.dtype).contiguous(), workspace


def _gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Bias, ...]:
    dtype = acc_type(workspace.dtype)
    reset, update, new, hidden, new_h = workspace.to(dtype).chunk(_GRU_KEEPS, 1)
    gradient = grad_hy.to(dtype)
    grad_update = gradient * (hidden - new) * update * (1 - update)
    grad_new = gradient * (1 - update) * (1 - new * new)
    grad_reset = grad_new * new_h * reset * (1 - reset)
    grad_input_gates, grad_hidden_gates = (
        torch.cat([grad_reset, grad_update, last], 1).to(workspace.dtype)
        for last in (grad_new, grad_new * reset)
    )
    grad_hx = (gradient * update).to(grad_hy.dtype).contiguous()
    biases = (grad_input_gates.sum(0), grad_hidden_gates.sum(0)) if has_bias else (None, None)
    return grad_input_gates, grad_hidden_gates, grad_hx, *biases


@op("aten::_thnn_fused_lstm_cell", source=_SOURCE, values=_lstm)
def _lstm_memory(call: OpCall) -> None:
    """PyTorch's meta kernel fails without biases."""
    hy, cy, workspace = call.result
    call.alloc_outputs(workspace, hy, cy)


@op("aten::_thnn_fused_gru_cell", source=_SOURCE, values=_gru)
def _gru_memory(call: OpCall) -> None:
    hy, workspace = call.result
    call.alloc_outputs(workspace, hy)


@op("aten::_thnn_fused_lstm_cell_backward_impl", source=_SOURCE, reference=_lstm_backward)
def _lstm_backward_memory(call: OpCall) -> None:
    """Both biases have one gradient."""
    grad_gates, grad_cx, grad_bias = call.result
    call.alloc_outputs(grad_gates, grad_cx, grad_bias)
    if grad_bias is not None:
        alloc_sum_workspace(call, grad_gates, 0)


@op("aten::_thnn_fused_gru_cell_backward", source=_SOURCE, values=_gru_backward)
def _gru_backward_memory(call: OpCall) -> None:
    """Each bias has its own gradient."""
    grad_input_gates, grad_hidden_gates, grad_hx, *grad_biases = call.result
    call.alloc_outputs(grad_input_gates, grad_hidden_gates, grad_hx)
    for gates, bias in zip((grad_input_gates, grad_hidden_gates), grad_biases, strict=True):
        if bias is not None:
            call.alloc_outputs(bias)
            alloc_sum_workspace(call, gates, 0)
