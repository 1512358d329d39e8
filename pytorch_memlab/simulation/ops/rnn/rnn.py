"""Recurrent networks: cuDNN's where it takes them, else PyTorch's own layers of fused cells.

``aten/src/ATen/native/RNN.cpp`` chooses; what it does before and after cuDNN is in
``native/cudnn/RNN.cpp``.
"""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import define
from . import layers as rnn_layers
from .layout import MODES, Network, flat_buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...machine.simulated_gpu import SimulatedGPU

    Weights = list[torch.Tensor]

_TAKEN: Final = (torch.float16, torch.float32, torch.float64)
_BFLOAT16_SINCE: Final = (2, 10)
_BFLOAT16_CAPABILITY: Final = 8
_NUMBER: Final = re.compile(r"\d+")

_STATE_BYTES: Final = 48
_STATE_THREADS: Final = 1024
"""cuDNN's state of dropout: one of cuRAND's states for each thread of a block on every SM.

An estimate: only ``cudnnDropoutGetStatesSize`` tells, PyTorch's sources say no more than
"slightly over 2MB" (``native/cudnn/RNN.cpp``).
"""

_states: weakref.WeakKeyDictionary[SimulatedGPU, torch.Tensor] = weakref.WeakKeyDictionary()


def use_cudnn(gpu: SimulatedGPU, tensor: torch.Tensor) -> bool:
    """True if cuDNN runs a recurrent network."""
    if not torch._C._get_cudnn_enabled() or not tensor.numel():
        return False
    if tensor.dtype == torch.bfloat16:
        version = tuple(int(number) for number in _NUMBER.findall(torch.__version__)[:2])
        return version >= _BFLOAT16_SINCE and gpu.model.major >= _BFLOAT16_CAPABILITY
    return tensor.dtype in _TAKEN


def _of_mode(mode: str) -> Callable[..., Any]:
    def network(
        gpu: SimulatedGPU, tensor: torch.Tensor, hx: Any, weights: Weights, *options: Any
    ) -> Any:
        return _run(gpu, mode, tensor, None, hx, weights, *options)

    return network


def _packed_of_mode(mode: str) -> Callable[..., Any]:
    def network(
        gpu: SimulatedGPU,
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        weights: Weights,
        *options: Any,
    ) -> Any:
        if batch_sizes.is_cuda:
            raise RuntimeError(
                f"batch_sizes of a packed sequence must be on the CPU, not on {batch_sizes.device}"
            )
        return _run(gpu, mode, data, batch_sizes.tolist(), hx, weights, *options, False)

    return network


def _run(
    gpu: SimulatedGPU,
    mode: str,
    tensor: torch.Tensor,
    batch_sizes: list[int] | None,
    hx: Any,
    weights: Weights,
    *options: Any,
) -> Any:
    states = hx if mode == "LSTM" else [hx]
    if mode == "LSTM" and len(states) != 2:
        return NotImplemented
    if not use_cudnn(gpu, tensor):
        return rnn_layers.run(mode, tensor, batch_sizes, states, weights, *options)
    results = _cudnn(gpu, mode, tensor, batch_sizes or [], states, weights, *options)
    return results[: 1 + len(states)]


def _cudnn(
    gpu: SimulatedGPU,
    mode: str,
    tensor: torch.Tensor,
    batch_sizes: list[int],
    states: Weights,
    weights: Weights,
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
    network = Network(
        MODES.index(mode),
        tensor.shape[-1],
        hidden_size,
        proj_size,
        num_layers,
        2 if bidirectional else 1,
    )
    return torch.ops.aten._cudnn_rnn.default(
        tensor,
        weights,
        count,
        flat_buffer(network, weights, count),
        hx,
        cx,
        network.mode,
        hidden_size,
        proj_size,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        batch_sizes,
        _dropout_state(gpu, dropout) if train and dropout > 0 else None,
    )


def _dropout_state(gpu: SimulatedGPU, dropout: float) -> torch.Tensor:
    """The state of cuDNN's dropout, made once for each GPU."""
    state = _states.get(gpu)
    if state is None:
        torch.empty((), dtype=torch.int64, device=gpu.device)
        nbytes = gpu.model.multi_processor_count * _STATE_THREADS * _STATE_BYTES
        state = _states[gpu] = torch.empty(nbytes, dtype=torch.uint8, device=gpu.device)
    return state


for _mode in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU"):
    define(f"aten::{_mode.lower()}.input", cuda_dispatch=_of_mode(_mode))
    define(f"aten::{_mode.lower()}.data", cuda_dispatch=_packed_of_mode(_mode))
