"""Recurrent networks that cuDNN does not take: PyTorch's own layers, one cell after another.

As ``aten/src/ATen/native/RNN.cpp`` runs them on CUDA, where no step's input is computed ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from .cells import gru_step, lstm_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tensors = list[torch.Tensor]
    Step = Callable[..., Tensors]

_aten: Final = torch.ops.aten


def _plain_step(activate: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(
        tensor: torch.Tensor,
        states: Tensors,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None = None,
        b_hh: torch.Tensor | None = None,
    ) -> Tensors:
        of_hidden = _aten.linear.default(states[0], w_hh, b_hh)
        return [activate(of_hidden.add_(_aten.linear.default(tensor, w_ih, b_ih)))]

    return step


_STEPS: Final[Mapping[str, Step]] = {
    "LSTM": lstm_step,
    "GRU": gru_step,
    "RNN_TANH": _plain_step(torch.ops.aten.tanh.default),
    "RNN_RELU": _plain_step(torch.ops.aten.relu.default),
}


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
            own = weights[position * count : (position + 1) * count]
            output, found = _layer(
                _STEPS[mode], tensor, batch_sizes, list(cells[position]), _named(own, has_biases),
                bool(direction),
            )  # fmt: skip
            outputs.append(output)
            last.append(found)
        tensor = outputs[0] if directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
        if dropout and train and layer < num_layers - 1:
            tensor = _aten.dropout.default(tensor, dropout, True)
    if batch_first:
        tensor = tensor.transpose(0, 1)
    return tensor, *(torch.stack(parts, 0) for parts in zip(*last, strict=True))


def _named(weights: Tensors, has_biases: bool) -> tuple[torch.Tensor | None, ...]:
    """Weights in the order in which a step takes them."""
    if has_biases:
        return tuple(weights)
    return (*weights[:2], None, None, *weights[2:])


def _layer(
    step: Step,
    tensor: torch.Tensor,
    batch_sizes: list[int] | None,
    states: Tensors,
    weights: tuple[Any, ...],
    is_backward: bool,
) -> tuple[torch.Tensor, Tensors]:
    """One direction of one layer: its output, and its last states."""
    if batch_sizes is not None:
        packed = _packed_backward if is_backward else _packed_forward
        return packed(step, tensor, batch_sizes, states, weights)
    inputs = tensor.unbind(0)
    outputs = []
    for one in reversed(inputs) if is_backward else inputs:
        states = step(one, states, *weights)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if is_backward else outputs, 0), states


def _packed_forward(
    step: Step,
    data: torch.Tensor,
    batch_sizes: list[int],
    states: Tensors,
    weights: tuple[Any, ...],
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
        states = step(one, states, *weights)
        outputs.append(states[0])
    ended.append(states)
    found = [torch.cat(parts[::-1], 0) for parts in zip(*ended, strict=True)]
    return torch.cat(outputs, 0), found


def _packed_backward(
    step: Step,
    data: torch.Tensor,
    batch_sizes: list[int],
    states: Tensors,
    weights: tuple[Any, ...],
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
        states = step(data.narrow(0, offset, size), states, *weights)
        outputs.append(states[0])
    return torch.cat(outputs[::-1], 0), states
