"""The kernels that compute all gates of a cell at once: ``aten/src/ATen/native/cuda/RNN.cu``.

The workspaces that the forward pass returns hold gates as they are before their activations, which
CUDA's hold as they are after them: PyTorch's formulas of gradients that can be differentiated again
take the former. Nothing but a backward pass reads a workspace.
"""

from __future__ import annotations

from typing import Final

import torch

from ..core.memory_formats import acc_type
from ..core.op_call import OpCall
from ..core.reduction_workspace import alloc_sum_workspace
from ..core.registry import op

Bias = torch.Tensor | None

_SOURCE: Final = "aten/src/ATen/native/cuda/RNN.cu"
_GRU_KEEPS: Final = 5
_aten: Final = torch.ops.aten


def _wide(tensor: torch.Tensor, bias: Bias = None) -> torch.Tensor:
    """Gates in the type of the arithmetic, with their bias."""
    wide = tensor.to(acc_type(tensor.dtype))
    return wide if bias is None else wide + bias.to(wide.dtype)


def _lstm(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, ...]:
    gates = _wide(input_gates, input_bias) + _wide(hidden_gates, hidden_bias)
    input_gate, forget_gate, cell_gate, output_gate = gates.chunk(4, 1)
    cy = forget_gate.sigmoid() * _wide(cx) + input_gate.sigmoid() * cell_gate.tanh()
    hy = output_gate.sigmoid() * cy.tanh()
    workspace = gates.to(input_gates.dtype)
    return tuple(result.contiguous() for result in (hy.to(cx.dtype), cy.to(cx.dtype), workspace))


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
    grads = (None if grad is None else _wide(grad) for grad in (grad_hy, grad_cy))
    gates = _wide(workspace)
    grad_gates, _, grad_cx, *_ = _aten._thnn_differentiable_lstm_cell_backward.default(
        *grads, gates, torch.zeros_like(gates), None, None, _wide(cx), _wide(cy)
    )
    grad_gates = grad_gates.to(workspace.dtype)
    return grad_gates, grad_cx.to(cx.dtype).contiguous(), grad_gates.sum(0) if has_bias else None


def _gru(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    reset_i, update_i, new_i = _wide(input_gates, input_bias).chunk(3, 1)
    reset_h, update_h, new_h = _wide(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update, hidden = reset_i + reset_h, update_i + update_h, _wide(hx)
    new = (new_i + reset.sigmoid() * new_h).tanh()
    hy = new + update.sigmoid() * (hidden - new)
    workspace = torch.cat([reset, update, new_i, hidden, new_h], 1)
    return hy.to(hx.dtype).contiguous(), workspace.to(hx.dtype)


def _gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Bias, ...]:
    reset, update, new_i, hidden, new_h = _wide(workspace).chunk(_GRU_KEEPS, 1)
    of_input = torch.cat([reset, update, new_i], 1)
    of_hidden = torch.cat([torch.zeros_like(reset), torch.zeros_like(update), new_h], 1)
    grads = _aten._thnn_differentiable_gru_cell_backward.default(
        _wide(grad_hy), of_input, of_hidden, hidden, None, None
    )
    grad_input, grad_hidden, grad_hx = (grad.to(workspace.dtype) for grad in grads[:3])
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hx.contiguous(), *biases


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
