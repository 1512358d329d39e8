"""Recurrent networks: cuDNN's where it takes them, else PyTorch's own layers of fused cells.

``aten/src/ATen/native/RNN.cpp`` chooses; what it does before and after cuDNN is in
``native/cudnn/RNN.cpp``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..registry import RELEASE, define
from . import layers
from .layout import MODES, Network, flat_buffer

_TAKEN: Final = (torch.float16, torch.float32, torch.float64)
_BFLOAT16_SINCE: Final = (2, 10)
_BFLOAT16_CAPABILITY: Final = 8

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
        if not use_cudnn(gpu, tensor):
            return layers.run(mode, tensor, batch_sizes, states, weights, *options)
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
    return torch.ops.aten._cudnn_rnn.default(
        tensor, weights, count, buffer, hx, cx, *sizes, *options
    )


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
