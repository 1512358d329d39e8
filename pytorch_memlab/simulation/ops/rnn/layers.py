"""Recurrent networks that cuDNN does not take: PyTorch's own layers, one cell after another.

As ``aten/src/ATen/native/RNN.cpp`` runs them on CUDA: no step's input is computed ahead, and a
fused kernel (``fused_cells.py``) computes all gates of an LSTM's or a GRU's cell.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import define

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...machine.simulated_gpu import SimulatedGPU

    Tensors = list[torch.Tensor]
    Step = Callable[[torch.Tensor, Tensors], Tensors]

_aten: Final = torch.ops.aten


def _lstm_step(weights: Sequence[Any], tensor: torch.Tensor, states: Tensors) -> Tensors:
    w_ih, w_hh, b_ih, b_hh, w_hr = (*weights, None, None, None)[:5]
    hx, cx = states
    gates = _aten.matmul.default(tensor, w_ih.t()), _aten.matmul.default(hx, w_hh.t())
    hy, cy, _workspace = _aten._thnn_fused_lstm_cell.default(*gates, cx, b_ih, b_hh)
    return [hy if w_hr is None else _aten.matmul.default(hy, w_hr.t()), cy]


def _gru_step(weights: Sequence[Any], tensor: torch.Tensor, states: Tensors) -> Tensors:
    w_ih, w_hh, *biases = weights
    (hx,) = states
    gates = _aten.matmul.default(tensor, w_ih.t()), _aten.matmul.default(hx, w_hh.t())
    return [_aten._thnn_fused_gru_cell.default(*gates, hx, *biases)[0]]


def _plain_step(
    activate: Any, weights: Sequence[Any], tensor: torch.Tensor, states: Tensors
) -> Tensors:
    w_ih, w_hh, b_ih, b_hh = weights
    of_hidden = _aten.linear.default(states[0], w_hh, b_hh)
    return [activate(of_hidden.add_(_aten.linear.default(tensor, w_ih, b_ih)))]


_STEPS: Final[Mapping[str, Callable[..., Tensors]]] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN_TANH": partial(_plain_step, torch.ops.aten.tanh.default),
    "RNN_RELU": partial(_plain_step, torch.ops.aten.relu.default),
}


def _lstm_cell(_gpu: SimulatedGPU, tensor: torch.Tensor, hx: Tensors, *weights: Any) -> Any:
    return tuple(_lstm_step(weights, tensor, hx))


def _gru_cell(_gpu: SimulatedGPU, tensor: torch.Tensor, hx: torch.Tensor, *weights: Any) -> Any:
    return _gru_step(weights, tensor, [hx])[0]


define("aten::lstm_cell", cuda_dispatch=_lstm_cell)
define("aten::gru_cell", cuda_dispatch=_gru_cell)


def run(
    mode: str,
    tensor: torch.Tensor,
    batch_sizes: list[int] | None,
    states: Tensors,
    weights: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Run a network."""
    if batch_first:
        tensor = tensor.transpose(0, 1)
    directions = 2 if bidirectional else 1
    count = len(weights) // (num_layers * directions)
    cells = list(zip(*(state.unbind(0) for state in states), strict=True))
    last = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            position = layer * directions + direction
            own: list[Any] = weights[position * count : (position + 1) * count]
            if not has_biases:
                own[2:2] = [None, None]
            step = partial(_STEPS[mode], own)
            output, found = _layer(step, tensor, batch_sizes, list(cells[position]), direction)
            outputs.append(output)
            last.append(found)
        tensor = outputs[0] if directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
        if dropout and train and layer < num_layers - 1:
            tensor = _aten.dropout.default(tensor, dropout, True)
    if batch_first:
        tensor = tensor.transpose(0, 1)
    return tensor, *(torch.stack(parts, 0) for parts in zip(*last, strict=True))


def _layer(
    step: Step,
    tensor: torch.Tensor,
    batch_sizes: list[int] | None,
    states: Tensors,
    is_backward: int,
) -> tuple[torch.Tensor, Tensors]:
    """One direction of one layer: its output, and its last states."""
    if batch_sizes is not None:
        packed = _packed_backward if is_backward else _packed_forward
        return packed(step, tensor, batch_sizes, states)
    inputs = tensor.unbind(0)
    outputs = []
    for one in reversed(inputs) if is_backward else inputs:
        states = step(one, states)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if is_backward else outputs, 0), states


def _packed_forward(
    step: Step, data: torch.Tensor, batch_sizes: list[int], states: Tensors
) -> tuple[torch.Tensor, Tensors]:
    """Sequences end one after another, the shortest first: their states are put aside."""
    outputs, ended = [], []
    offset, last = 0, batch_sizes[0]
    for size in batch_sizes:
        one = data.narrow(0, offset, size)
        offset += size
        if size < last:
            ended.append([state.narrow(0, size, last - size) for state in states])
            states = [state.narrow(0, 0, size) for state in states]
        last = size
        states = step(one, states)
        outputs.append(states[0])
    ended.append(states)
    found = [torch.cat(parts[::-1], 0) for parts in zip(*ended, strict=True)]
    return torch.cat(outputs, 0), found


def _packed_backward(
    step: Step, data: torch.Tensor, batch_sizes: list[int], states: Tensors
) -> tuple[torch.Tensor, Tensors]:
    """From the last step on, longer sequences first: the others join when they begin."""
    outputs: Tensors = []
    offset, last = data.shape[0], batch_sizes[-1]
    initial = states
    states = [state.narrow(0, 0, last) for state in initial]
    for size in reversed(batch_sizes):
        if size > last:
            joining = [state.narrow(0, last, size - last) for state in initial]
            states = [torch.cat(pair, 0) for pair in zip(states, joining, strict=True)]
        last = size
        offset -= size
        states = step(data.narrow(0, offset, size), states)
        outputs.append(states[0])
    return torch.cat(outputs[::-1], 0), states
