"""cuDNN's recurrent networks: the shapes of all that they take and make, and what they return.

The weights of a network lie in one buffer: those of all layers and directions, then all biases.
cuDNN has two biases for each gate also where the program has none. The CPU's own networks compute
what ``aten/src/ATen/native/cudnn/RNN.cpp`` returns. The seed of the dropout lies at the start of
the reserve space. The gradients are those of the CPU's network, run again: nothing of the forward
pass is kept but the seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from ..core.autograd_reference import dispatch_keys, gradients
from ..core.memory_formats import acc_type
from ..core.op_call import OpCall
from ..core.registry import estimated

MODES: Final = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")
"""In the order of ``cudnnRNNMode_t``."""

_GATES: Final = (1, 1, 4, 3)
_KEPT_FOR_BACKWARD: Final = (1, 1, 5, 6)
"""Values of each unit and step that cuDNN keeps in its reserve space, by mode: an estimate.

PyTorch's issue 2895 has the reserve of two networks of four layers of 320 units, 736,000,000 bytes
for an LSTM and 864,000,000 for a GRU: their ratio is 23 to 27. Three of these values are what goes
from layer to layer, which leaves 5 and 6 to each layer; an LSTM's are its four gates and its cell.
Of the plain networks nothing is told but what they must keep: what they return.
"""


class WeightPart(NamedTuple):
    """One parameter in the buffer of weights: the offset of its first element, and its size."""

    offset: int
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        return torch.Size(self.size).numel()


class Network(NamedTuple):
    """A recurrent network as cuDNN's descriptor tells it."""

    mode: int  # position in ``MODES``
    input_size: int  # features of the input
    hidden_size: int  # units of a layer
    proj_size: int  # units that a layer's result is projected to; 0: it is not
    num_layers: int  # how many lie on top of each other
    bidirectional: bool  # it also runs from the end to the start

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def parts(self, count: int = 5) -> list[WeightPart]:
        """The position of each parameter, of up to ``count`` in each layer and direction."""
        # They are two matrices, two biases and the projection; 3 stands for those without biases.
        rows = _GATES[self.mode] * self.hidden_size
        layers: list[list[WeightPart]] = []
        offset = 0
        for layer in range(self.num_layers):
            inputs = self.directions * self.output_size if layer else self.input_size
            sizes = [(rows, inputs), (rows, self.output_size)]
            if self.proj_size:
                sizes.append((self.proj_size, self.hidden_size))
            for _direction in range(self.directions):
                layers.append([])
                for size in sizes:
                    layers[-1].append(WeightPart(offset, size))
                    offset += layers[-1][-1].numel
        for parts in layers:
            parts[2:2] = [WeightPart(offset, (rows,)), WeightPart(offset + rows, (rows,))]
            offset += 2 * rows
            parts[:] = [*parts[:2], parts[4]] if count == 3 else parts[:count]
        return [part for parts in layers for part in parts]

    def numel(self) -> int:
        return sum(part.numel for part in self.parts())


class CudnnRNNCall(NamedTuple):
    """The arguments of ``_cudnn_rnn``, in their order."""

    tensor: torch.Tensor
    weights: list[torch.Tensor]
    weight_stride0: int
    buffer: torch.Tensor | None
    hx: torch.Tensor
    cx: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: list[int]
    state: torch.Tensor | None

    @property
    def network(self) -> Network:
        return Network(self.mode, self.tensor.shape[-1], *self[7:10], self.bidirectional)

    @property
    def drops(self) -> bool:
        return self.train and self.dropout > 0

    @property
    def input(self) -> torch.Tensor:
        return self.turned(self.tensor)

    def turned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with its steps first, or one with its steps first as the program has it."""
        return tensor.transpose(0, 1) if self.batch_first and not self.batch_sizes else tensor

    def check(self) -> None:
        if (self.cx is not None) != (MODES[self.mode] == "LSTM"):
            raise RuntimeError("rnn: illegal defined cx for non-LSTM RNN")
        for name, state in (("hx", self.hx), ("cx", self.cx)):
            if state is not None and not state.is_contiguous():
                raise RuntimeError(f"rnn: {name} is not contiguous")
        batch = self.batch_sizes[0] if self.batch_sizes else self.input.shape[1]
        network = self.network
        shape = [network.num_layers * network.directions, batch, network.output_size]
        if list(self.hx.shape) != shape:
            raise RuntimeError(f"Expected hidden size {shape}, got {list(self.hx.shape)}")

    def reserve(self) -> int:
        """Bytes of the reserve space, which training keeps: an estimate."""
        network = self.network
        kept = _KEPT_FOR_BACKWARD[self.mode] + (1 if self.proj_size else 0)
        of_layers = self.num_layers * kept * self.hidden_size
        between = (self.num_layers - 1) * network.output_size
        of_step = network.directions * (of_layers + between) * self.tensor.element_size()
        return self.tensor.shape[:-1].numel() * of_step if self.train else 0

    def workspace(self) -> int:
        """Bytes of the workspace, as far as they are known."""
        # PyTorch's issue 2895 tells 17,730,560 bytes for an LSTM and 13,169,920 for a GRU: a copy
        # of the matrices, and something for the states of each unit that its batch would tell.
        matrices = (part.numel for part in self.network.parts() if len(part.size) > 1)
        return sum(matrices) * self.tensor.element_size()


def views(buffer: torch.Tensor, parts: Iterable[WeightPart]) -> list[torch.Tensor]:
    """Parameters as views of a buffer."""
    return [buffer[part.offset : part.offset + part.numel].view(part.size) for part in parts]


def fill(buffer: torch.Tensor, parts: Iterable[WeightPart], weights: list[torch.Tensor]) -> Any:
    """Copy parameters into a buffer: the views of it that have their values."""
    flat = views(buffer, parts)
    for weight, view in zip(weights, flat, strict=True):
        view.copy_(weight.view_as(view))
    return flat


def flatten(
    weights: list[torch.Tensor],
    count: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> torch.Tensor:
    """``torch._cudnn_rnn_flatten_weight``: parameters become views of one buffer."""
    network = Network(mode, input_size, hidden_size, proj_size, num_layers, bidirectional)
    buffer = torch.zeros(network.numel(), dtype=weights[0].dtype, device=weights[0].device)
    flat = fill(buffer, network.parts(count), weights)
    for weight, view in zip(weights, flat, strict=True):
        weight.set_(view)
    return buffer


def flat_buffer(network: Network, weights: list[torch.Tensor], count: int) -> Any:
    """The buffer that parameters are views of, if they lie in it as cuDNN wants them."""
    first = weights[0]
    numel = network.numel()
    storage = first.untyped_storage()
    if storage.nbytes() // first.element_size() < numel or not weights[-1].is_contiguous():
        return None
    for weight, part in zip(weights, network.parts(count), strict=True):
        if weight.untyped_storage()._cdata != storage._cdata:
            return None
        if weight.storage_offset() != part.offset:
            return None
    return first.detach().as_strided((numel,), (1,), 0)


_SOURCE: Final = "aten/src/ATen/native/cudnn/RNN.cpp"
_SEED_BYTES: Final = 8

_NOT_FLAT: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to "
    "be compacted at every call, possibly greatly increasing memory usage. To compact weights "
    "again call flatten_parameters()."
)
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_PACKETS: Final = (
    torch.ops.aten.rnn_relu,
    torch.ops.aten.rnn_tanh,
    torch.ops.aten.lstm,
    torch.ops.aten.gru,
)


def _meta(*args: Any) -> tuple[torch.Tensor, ...]:
    call = CudnnRNNCall(*args)
    call.check()
    tensor, hx, cx = call.tensor, call.hx, call.cx
    size = call.network.output_size * call.network.directions
    return (
        call.turned(tensor.new_empty(*call.input.shape[:-1], size)),
        hx.new_empty(hx.shape),
        hx.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        tensor.new_empty(call.reserve(), dtype=torch.uint8),
        tensor.new_empty(call.network.numel()) if call.buffer is None else call.buffer,
    )


def _reference(*args: Any) -> tuple[torch.Tensor, ...]:
    call = CudnnRNNCall(*args)
    if call.buffer is None:
        warnings.warn(_NOT_FLAT, stacklevel=1)
    results = _meta(*args)
    output, hy, cy, reserve, buffer = results
    if call.buffer is None:
        fill(buffer.zero_(), call.network.parts(call.weight_stride0), call.weights)
    seed = 0
    if call.drops and reserve.numel() >= _SEED_BYTES:
        seed = int(torch.randint(2**62, (), device="cpu"))
        reserve[:_SEED_BYTES].view(torch.int64).fill_(seed)
    with dispatch_keys(), torch.no_grad():
        values = _run(call, seed, *_inputs(call))
    for result, value in zip((call.turned(output), hy, cy), values, strict=False):
        result.copy_(value)
    return results


def _backward_call(args: tuple[Any, ...]) -> tuple[CudnnRNNCall, tuple[Any, ...], list[bool]]:
    """The call of the forward pass, the gradients of its outputs, and those that are wanted."""
    return CudnnRNNCall(*args[:6], *args[10:20]), args[7:10], args[21]


def _separate_gradients(call: CudnnRNNCall) -> bool:
    """True if weights' gradients are copied out of the buffer that cuDNN writes them to."""
    return call.weight_stride0 != (5 if call.proj_size else 4)


def _backward_meta(*args: Any) -> tuple[Any, ...]:
    call, grad_outputs, mask = _backward_call(args)
    if all(gradient is None for gradient in grad_outputs):
        return None, None, None, []
    hx, cx = call.hx, call.cx
    weights: list[torch.Tensor] = []
    if mask[3] and _separate_gradients(call):
        weights = [weight.new_empty(weight.shape) for weight in call.weights]
    elif mask[3]:
        part_views = views(call.tensor.new_empty(call.network.numel()), call.network.parts())
        weights = [
            view.view(like.shape) for view, like in zip(part_views, call.weights, strict=True)
        ]
    return (
        call.turned(call.tensor.new_empty(call.input.shape)),
        hx.new_empty(hx.shape),
        None if cx is None else cx.new_empty(cx.shape),
        weights,
    )


def _backward_reference(*args: Any) -> tuple[Any, ...]:
    call, grad_outputs, _mask = _backward_call(args)
    results = _backward_meta(*args)
    if results[0] is None:
        return results
    if not call.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    seed = int(args[20][:_SEED_BYTES].view(torch.int64)) if call.drops else 0
    grad_outputs = (
        None if grad_outputs[0] is None else call.turned(grad_outputs[0]),
        *grad_outputs[1:],
    )
    values = gradients(partial(_run, call, seed), _inputs(call), grad_outputs)
    states = results[1:2] if call.cx is None else results[1:3]
    for result, value in zip((call.turned(results[0]), *states, *results[3]), values, strict=False):
        result.copy_(value)
    return results


def _inputs(call: CudnnRNNCall) -> list[torch.Tensor]:
    """Input, states and weights, in the dtype of the arithmetic."""
    states = [call.hx] if call.cx is None else [call.hx, call.cx]
    dtype = acc_type(call.tensor.dtype)
    return [operand.detach().to(dtype) for operand in (call.input, *states, *call.weights)]


def _run(
    call: CudnnRNNCall, seed: int, tensor: torch.Tensor, *rest: torch.Tensor
) -> list[torch.Tensor]:
    """Output and last states of the CPU's own network."""
    count = 1 if call.cx is None else 2
    states, weights = rest[:count], rest[count:]
    directions = call.network.directions
    generator = torch._C.Generator().manual_seed(seed)
    last = []
    for layer in range(call.num_layers):
        if layer and call.drops:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            kept.bernoulli_(1 - call.dropout, generator=generator)
            tensor = tensor * kept.div_(1 - call.dropout)
        rows = slice(layer * directions, (layer + 1) * directions)
        of_layer = weights[rows.start * call.weight_stride0 : rows.stop * call.weight_stride0]
        tensor, *ended = _layer(call, tensor, [state[rows] for state in states], of_layer)
        last.append(ended)
    return [tensor, *(torch.cat(parts) for parts in zip(*last, strict=True))]


def _layer(
    call: CudnnRNNCall,
    tensor: torch.Tensor,
    states: list[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> Any:
    hidden: Any = states[0] if call.cx is None else states
    has_biases = call.weight_stride0 > (3 if call.proj_size else 2)
    options = (has_biases, 1, 0.0, call.train, call.bidirectional)
    packet = _PACKETS[call.mode]
    with _onednn(not call.proj_size):
        if call.batch_sizes:
            sizes = torch.tensor(call.batch_sizes, device="cpu")
            return packet.data._op_dk(_COMPOSITE, tensor, sizes, hidden, weights, *options)
        return packet.input._op_dk(_COMPOSITE, tensor, hidden, weights, *options, False)


@contextmanager
def _onednn(wanted: bool) -> Iterator[None]:
    """Switch oneDNN off unless it is wanted: it would warn that it takes no projections."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and wanted)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


_estimated: Final = partial(estimated, source=_SOURCE)


@_estimated("aten::_cudnn_rnn", reference=_reference, meta=_meta)
def _memory(call: OpCall) -> None:
    rnn = CudnnRNNCall(*call.args)
    output, hy, cy, reserve, buffer = call.result
    call.alloc_contiguous(rnn.input)
    call.alloc_outputs(output, hy, cy)
    if rnn.buffer is None:
        call.alloc_outputs(buffer)
    call.alloc_temp(rnn.workspace())
    call.alloc_outputs(reserve, is_estimate=True)


@_estimated("aten::_cudnn_rnn_backward", reference=_backward_reference, meta=_backward_meta)
def _backward_memory(call: OpCall) -> None:
    rnn, grad_outputs, mask = _backward_call(call.args)
    grad_input, grad_hx, grad_cx, grad_weights = call.result
    if grad_input is None:
        return
    nbytes = rnn.tensor.element_size()
    for gradient, like in zip(grad_outputs, (call.args[6], rnn.hx, rnn.cx), strict=True):
        if gradient is None and like is not None:
            call.alloc_temp(like.numel() * nbytes)
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if grad_outputs[0] is not None:
            call.alloc_contiguous(rnn.turned(grad_outputs[0]))
        call.alloc_outputs(grad_input)
        call.alloc_contiguous(*grad_outputs[1:])
        call.alloc_outputs(grad_hx, grad_cx)
        call.alloc_temp(rnn.workspace())
    if not mask[3]:
        return
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if _separate_gradients(rnn):
            call.alloc_temp(rnn.network.numel() * nbytes)
        else:
            call.alloc_outputs(*grad_weights)
        call.alloc_temp(rnn.workspace())
        call.alloc_outputs(*grad_weights)
