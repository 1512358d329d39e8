"""The kernels that compute all gates of a cell at once, computed on the host.

What they return ``aten/src/ATen/native/cuda/RNN.cu`` tells.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..memory_formats import acc_type

Bias = torch.Tensor | None

_GRU_KEEPS: Final = 5


def lstm(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, ...]:
    """``_thnn_fused_lstm_cell`` computed on the host."""
    dtype = acc_type(of_input.dtype)
    gates = of_input.to(dtype) + of_hidden.to(dtype)
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias.to(dtype) + hidden_bias.to(dtype)
    entering, forgetting, cell, leaving = gates.chunk(4, 1)
    kept = [entering.sigmoid(), forgetting.sigmoid(), cell.tanh(), leaving.sigmoid()]
    cy = kept[1] * cx.to(dtype) + kept[0] * kept[2]
    hy = kept[3] * cy.tanh()
    return (
        torch.empty_like(cx, memory_format=torch.contiguous_format).copy_(hy),
        torch.empty_like(cx, memory_format=torch.contiguous_format).copy_(cy),
        torch.cat(kept, 1).to(of_input.dtype),
    )


def lstm_shapes(
    of_input: torch.Tensor, of_hidden: torch.Tensor, cx: torch.Tensor, *_biases: Any
) -> tuple[torch.Tensor, ...]:
    """Shapes of what ``lstm`` returns."""
    return cx.new_empty(cx.shape), cx.new_empty(cx.shape), of_input.new_empty(of_input.shape)


def lstm_backward(
    grad_hy: Bias,
    grad_cy: Bias,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[Bias, ...]:
    """``_thnn_fused_lstm_cell_backward_impl`` computed on the host."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = acc_type(workspace.dtype)
    entering, forgetting, cell, leaving = workspace.to(dtype).chunk(4, 1)
    squashed = cy.to(dtype).tanh()
    of_hidden = torch.zeros_like(squashed) if grad_hy is None else grad_hy.to(dtype)
    of_cell = of_hidden * leaving * (1 - squashed * squashed)
    if grad_cy is not None:
        of_cell = of_cell + grad_cy.to(dtype)
    gates = torch.cat(
        [
            of_cell * cell * entering * (1 - entering),
            of_cell * cx.to(dtype) * forgetting * (1 - forgetting),
            of_cell * entering * (1 - cell * cell),
            of_hidden * squashed * leaving * (1 - leaving),
        ],
        1,
    ).to(workspace.dtype)
    return gates, (of_cell * forgetting).to(cx.dtype), gates.sum(0) if has_bias else None


def lstm_backward_shapes(
    grad_hy: Bias,
    grad_cy: Bias,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[Bias, ...]:
    """Shapes of what ``lstm_backward`` returns."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    return (
        workspace.new_empty(workspace.shape),
        cx.new_empty(cx.shape),
        workspace.new_empty(workspace.shape[1]) if has_bias else None,
    )


def gru(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_thnn_fused_gru_cell`` computed on the host."""
    dtype = acc_type(of_input.dtype)
    wide = [of_input.to(dtype), of_hidden.to(dtype)]
    if input_bias is not None and hidden_bias is not None:
        wide = [wide[0] + input_bias.to(dtype), wide[1] + hidden_bias.to(dtype)]
    (reset_i, update_i, new_i), (reset_h, update_h, new_h) = (one.chunk(3, 1) for one in wide)
    reset, update = (reset_i + reset_h).sigmoid(), (update_i + update_h).sigmoid()
    new = (new_i + reset * new_h).tanh()
    hidden = hx.to(dtype)
    hy = new + update * (hidden - new)
    kept = torch.cat([reset, update, new, hidden, new_h], 1).to(hx.dtype)
    return torch.empty_like(hx, memory_format=torch.contiguous_format).copy_(hy), kept


def gru_shapes(
    of_input: torch.Tensor, of_hidden: torch.Tensor, hx: torch.Tensor, *_biases: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes of what ``gru`` returns."""
    return hx.new_empty(hx.shape), hx.new_empty(hx.shape[0], hx.shape[1] * _GRU_KEEPS)


def gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Bias, ...]:
    """``_thnn_fused_gru_cell_backward`` computed on the host."""
    dtype = acc_type(workspace.dtype)
    reset, update, new, hidden, new_h = workspace.to(dtype).chunk(_GRU_KEEPS, 1)
    gradient = grad_hy.to(dtype)
    of_update = gradient * (hidden - new) * update * (1 - update)
    of_new = gradient * (1 - update) * (1 - new * new)
    of_reset = of_new * new_h * reset * (1 - reset)
    of_input = torch.cat([of_reset, of_update, of_new], 1).to(workspace.dtype)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1).to(workspace.dtype)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, (gradient * update).to(grad_hy.dtype), *biases


def gru_backward_shapes(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Bias, ...]:
    """Shapes of what ``gru_backward`` returns."""
    batch, gates = workspace.shape[0], workspace.shape[1] // _GRU_KEEPS * 3
    biases = [workspace.new_empty(gates) if has_bias else None for _ in range(2)]
    return (
        workspace.new_empty(batch, gates),
        workspace.new_empty(batch, gates),
        grad_hy.new_empty(grad_hy.shape),
        *biases,
    )
