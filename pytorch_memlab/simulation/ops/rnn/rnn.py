"""Recurrent networks: cuDNN's where it takes them, else PyTorch's own layers, cell after cell.

``aten/src/ATen/native/RNN.cpp`` chooses; what it does before and after cuDNN is in
``native/cudnn/RNN.cpp``. PyTorch's layers compute no step's input ahead on CUDA, and a fused
kernel (``fused_cells.py``) computes all gates of an LSTM's or a GRU's cell.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ...machine.tensor_values import Bound, TensorValues
from ...machine.torch_release import RELEASE
from ..core.op_call import OpCall
from ..core.registry import AssumedSize, DataDependence, define, op
from .cudnn_rnn import MODES, Network, flat_buffer

Tensors = list[torch.Tensor]
Step = Callable[[torch.Tensor, Tensors], Tensors]

_TAKEN: Final = (torch.float16, torch.float32, torch.float64)
_BFLOAT16_SINCE: Final = (2, 10)
_BFLOAT16_CAPABILITY: Final = 8

_STATE_BYTES: Final = 48
_STATE_THREADS: Final = 1024
"""cuDNN's state of dropout: one of cuRAND's states for each thread of a block on every SM.

An estimate: only ``cudnnDropoutGetStatesSize`` tells, PyTorch's sources say no more than
"slightly over 2MB" (``native/cudnn/RNN.cpp``).
"""

_aten: Final = torch.ops.aten
_states: weakref.WeakKeyDictionary[SimulatedGPU, torch.Tensor] = weakref.WeakKeyDictionary()


def _use_cudnn(gpu: SimulatedGPU, tensor: torch.Tensor) -> bool:
    if not torch._C._get_cudnn_enabled() or not tensor.numel():
        return False
    if tensor.dtype == torch.bfloat16:
        return RELEASE >= _BFLOAT16_SINCE and gpu.model.major >= _BFLOAT16_CAPABILITY
    return tensor.dtype in _TAKEN


def _network(mode: str, *, is_packed: bool) -> Callable[..., Any]:
    """The dispatch of one kind of network, of padded or of packed sequences."""

    def network(gpu: SimulatedGPU, tensor: torch.Tensor, *args: Any) -> Any:
        batch_sizes = None
        if is_packed:
            sizes, *others = args
            if sizes.is_cuda:
                raise RuntimeError(
                    f"batch_sizes of a packed sequence must be on the CPU, not on {sizes.device}"
                )
            batch_sizes, args = sizes.tolist(), (*others, False)
        hx, weights, *options = args
        states = hx if mode == "LSTM" else [hx]
        if mode == "LSTM" and len(states) != 2:
            return NotImplemented
        if not _use_cudnn(gpu, tensor):
            return _run(mode, tensor, batch_sizes, states, weights, *options)
        results = _cudnn(gpu, mode, tensor, batch_sizes or [], states, weights, *options)
        return results[: 1 + len(states)]

    return network


def _cudnn(
    gpu: SimulatedGPU,
    mode: str,
    tensor: torch.Tensor,
    batch_sizes: list[int],
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    hx, cx = states[0], states[1] if len(states) > 1 else None
    hidden_size = hx.shape[2] if cx is None else cx.shape[2]
    proj_size = hx.shape[2] if hx.shape[2] != hidden_size else 0
    count = (4 if has_biases else 2) + (1 if proj_size else 0)
    sizes = (MODES.index(mode), hidden_size, proj_size, num_layers)
    network = Network(sizes[0], tensor.shape[-1], *sizes[1:], bidirectional)
    buffer = flat_buffer(network, weights, count)
    state = _dropout_state(gpu) if train and dropout > 0 else None
    options = (batch_first, dropout, train, bidirectional, batch_sizes, state)
    return _aten._cudnn_rnn.default(tensor, weights, count, buffer, hx, cx, *sizes, *options)


def _dropout_state(gpu: SimulatedGPU) -> torch.Tensor:
    """The state of cuDNN's dropout, made once for each GPU."""
    state = _states.get(gpu)
    if state is None:
        torch.empty((), dtype=torch.int64, device=gpu.device)
        nbytes = gpu.model.multi_processor_count * _STATE_THREADS * _STATE_BYTES
        state = _states[gpu] = torch.empty(nbytes, dtype=torch.uint8, device=gpu.device)
    return state


for _mode in MODES:
    define(f"aten::{_mode.lower()}.input", cuda_dispatch=_network(_mode, is_packed=False))
    define(f"aten::{_mode.lower()}.data", cuda_dispatch=_network(_mode, is_packed=True))


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
    "RNN_TANH": partial(_plain_step, _aten.tanh.default),
    "RNN_RELU": partial(_plain_step, _aten.relu.default),
}


define(
    "aten::lstm_cell",
    cuda_dispatch=lambda _gpu, tensor, hx, *weights: tuple(_lstm_step(weights, tensor, hx)),
)
define(
    "aten::gru_cell",
    cuda_dispatch=lambda _gpu, tensor, hx, *weights: _gru_step(weights, tensor, [hx])[0],
)


def _run(
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
            output, ended = _layer(step, tensor, batch_sizes, list(cells[position]), direction)
            outputs.append(output)
            last.append(ended)
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
    for step_input in reversed(inputs) if is_backward else inputs:
        states = step(step_input, states)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if is_backward else outputs, 0), states


def _packed_forward(
    step: Step, data: torch.Tensor, batch_sizes: list[int], states: Tensors
) -> tuple[torch.Tensor, Tensors]:
    """Sequences end one after another, the shortest first: their states are put aside."""
    outputs, ended = [], []
    offset, last = 0, batch_sizes[0]
    for size in batch_sizes:
        step_input = data.narrow(0, offset, size)
        offset += size
        if size < last:
            ended.append([state.narrow(0, size, last - size) for state in states])
            states = [state.narrow(0, 0, size) for state in states]
        last = size
        states = step(step_input, states)
        outputs.append(states[0])
    ended.append(states)
    final_states = [torch.cat(parts[::-1], 0) for parts in zip(*ended, strict=True)]
    return torch.cat(outputs, 0), final_states


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


def _packed(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sequences, lengths, batch_first = args
    if not values.is_known(lengths):
        _LENGTHS.of(values, "aten::_pack_padded_sequence", 0, 0)
        length = sequences.shape[1 if batch_first else 0]
        lengths = torch.full(lengths.shape, length)
    outline = torch.zeros(sequences.shape[:2])
    packed, sizes = torch.ops.aten._pack_padded_sequence.default(
        outline.unsqueeze(-1), lengths, batch_first
    )
    return values.make((packed.shape[0], *sequences.shape[2:]), sequences.dtype), sizes


def _unpacked(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return values.make(tuple(args[1]), args[0].dtype)


_LENGTHS: Final = AssumedSize("pack_padded_sequence", "every length the longest", Bound.AT_MOST)

define(
    "aten::_pack_padded_sequence_backward",
    takes_cpu_tensors=True,
    data_dependence=DataDependence(outputs=_unpacked, size=_LENGTHS),
)


@op(
    "aten::_pack_padded_sequence",
    source="aten/src/ATen/native/PackedSequence.cpp",
    cpu_outputs=frozenset({1}),
    takes_cpu_tensors=True,
    data_dependence=DataDependence(outputs=_packed, size=_LENGTHS),
)
def _packed_memory(call: OpCall) -> None:
    """Contiguous copies of runs of steps that are as wide, joined."""
    source, lengths, batch_first = call.args[:3]
    if not call.is_on_cpu(lengths):
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {call.gpu.device} Long tensor"
        )
    steps: torch.Tensor = source.transpose(0, 1) if batch_first else source
    copies = []
    joined = 0
    for shorter, length in enumerate(reversed(lengths.tolist())):
        if length > joined:
            run = steps[joined:length, : steps.shape[1] - shorter]
            joined = length
            if not run.is_contiguous():
                copies.append(call.alloc_copy(run))
    call.alloc_outputs(call.result[0])
    for allocation in copies:  # a C++ vector frees its first element first
        call.free_temp(allocation)
