"""cuDNN's recurrent networks, computed by those of the CPU.

The gradients are those of the CPU's network, run again: nothing of the forward pass is kept but
the seed of its dropout.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from ..memory_formats import acc_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .call import Call

    Tensors = list[torch.Tensor]

_key: Final = torch._C.DispatchKey
_AUTOCAST: Final = (_key.AutocastCUDA, _key.AutocastCPU)
_AUTOGRAD: Final = (_key.AutogradCPU, _key.ADInplaceOrView)
_COMPOSITE: Final = _key.CompositeImplicitAutograd
_PACKETS: Final = (
    torch.ops.aten.rnn_relu,
    torch.ops.aten.rnn_tanh,
    torch.ops.aten.lstm,
    torch.ops.aten.gru,
)


class CPUNetwork:
    """The CPU's own network for a call: copies of its tensors, in the dtype of the arithmetic.

    Args:
        call: whose tensors these are.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        dtype = acc_type(call.tensor.dtype)
        states = [call.hx] if call.cx is None else [call.hx, call.cx]
        self._states = len(states)
        self._tensors = [
            one.detach().to(dtype, copy=True) for one in (call.input, *states, *call.weights)
        ]

    def run(self, seed: int) -> list[torch.Tensor]:
        """Output and last states."""
        with _keys(), torch.no_grad():
            return self._forward(seed)

    def gradients(self, seed: int, given: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Gradients of input, states and weights."""
        with _keys(*_AUTOGRAD), torch.enable_grad():
            for tensor in self._tensors:
                tensor.requires_grad_()
            results = self._forward(seed)
            pairs = [
                (result, self._like(gradient, result, index == 0))
                for index, (result, gradient) in enumerate(zip(results, given, strict=False))
                if gradient is not None
            ]
            outputs, gradients = zip(*pairs, strict=True)
            found = torch.autograd.grad(
                outputs, self._tensors, gradients, allow_unused=True, materialize_grads=True
            )
            return tuple(found)

    def _like(self, gradient: torch.Tensor, result: torch.Tensor, is_output: bool) -> torch.Tensor:
        if is_output and self._call.is_transposed:
            gradient = gradient.transpose(0, 1)
        return gradient.detach().to(result.dtype, copy=True)

    def _forward(self, seed: int) -> list[torch.Tensor]:
        call = self._call
        network = call.network
        tensor, *rest = self._tensors
        states, weights = rest[: self._states], rest[self._states :]
        generator = torch._C.Generator().manual_seed(seed)
        last = []
        for layer in range(network.num_layers):
            if layer and call.dropout:
                kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                kept.bernoulli_(1 - call.dropout, generator=generator)
                tensor = tensor * kept.div_(1 - call.dropout)
            rows = slice(layer * network.directions, (layer + 1) * network.directions)
            of_layer = slice(rows.start * call.count, rows.stop * call.count)
            tensor, *found = self._layer(
                tensor, [state[rows] for state in states], weights[of_layer]
            )
            last.append(found)
        return [tensor, *(torch.cat(parts) for parts in zip(*last, strict=True))]

    def _layer(self, tensor: torch.Tensor, states: Tensors, weights: Tensors) -> Any:
        call = self._call
        hidden: Any = states if call.cx is not None else states[0]
        has_biases = call.count > (3 if call.network.proj_size else 2)
        options = (has_biases, 1, 0.0, call.train, call.network.directions == 2)
        packet = _PACKETS[call.network.mode]
        with _onednn(not call.network.proj_size):
            if call.batch_sizes:
                sizes = torch.tensor(call.batch_sizes, device="cpu")
                return packet.data._op_dk(_COMPOSITE, tensor, sizes, hidden, weights, *options)
            return packet.input._op_dk(_COMPOSITE, tensor, hidden, weights, *options, False)


def _keys(*wanted: Any) -> Any:
    """The dispatch of ops without casts, and with what is wanted: a mode has no autograd."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOCAST:
        excluded = excluded.add(key)
    for key in wanted:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


@contextmanager
def _onednn(wanted: bool) -> Iterator[None]:
    """Switch oneDNN off unless it is wanted: it would warn that it takes no projections."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and wanted)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
