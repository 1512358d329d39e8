"""``_cudnn_rnn`` and its backward pass: what they return, computed by the CPU's own networks.

What that is, ``aten/src/ATen/native/cudnn/RNN.cpp`` tells. The seed of the dropout lies at the
start of the reserve space. The gradients are those of the CPU's network, run again: nothing of the
forward pass is kept but the seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from ..autograd_reference import dispatch_keys, gradients
from ..memory_formats import acc_type
from ..op_call import OpCall
from ..registry import estimated
from .layout import Call, fill, views

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
    call = Call(*args)
    call.check()
    tensor, hx, cx = call.tensor, call.hx, call.cx
    return (
        call.turned(tensor.new_empty(call.output_shape())),
        hx.new_empty(hx.shape),
        hx.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        tensor.new_empty(call.reserve(), dtype=torch.uint8),
        tensor.new_empty(call.network.numel()) if call.buffer is None else call.buffer,
    )


def _reference(*args: Any) -> tuple[torch.Tensor, ...]:
    call = Call(*args)
    if call.buffer is None:
        warnings.warn(_NOT_FLAT, stacklevel=2)
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


def _backward_call(args: tuple[Any, ...]) -> tuple[Call, tuple[Any, ...], list[bool]]:
    """The call of the forward pass, the gradients of its outputs, and those that are wanted."""
    return Call(*args[:6], *args[10:20]), args[7:10], args[21]


def _separate_gradients(call: Call) -> bool:
    """True if weights' gradients are copied out of the buffer that cuDNN writes them to."""
    return call.weight_stride0 != (5 if call.proj_size else 4)


def _backward_meta(*args: Any) -> tuple[Any, ...]:
    call, given, mask = _backward_call(args)
    if all(gradient is None for gradient in given):
        return None, None, None, []
    hx, cx = call.hx, call.cx
    weights: list[torch.Tensor] = []
    if mask[3] and _separate_gradients(call):
        weights = [weight.new_empty(weight.shape) for weight in call.weights]
    elif mask[3]:
        found = views(call.tensor.new_empty(call.network.numel()), call.network.parts())
        weights = [view.view(like.shape) for view, like in zip(found, call.weights, strict=True)]
    return (
        call.turned(call.tensor.new_empty(call.input.shape)),
        hx.new_empty(hx.shape),
        None if cx is None else cx.new_empty(cx.shape),
        weights,
    )


def _backward_reference(*args: Any) -> tuple[Any, ...]:
    call, given, _mask = _backward_call(args)
    results = _backward_meta(*args)
    if results[0] is None:
        return results
    if not call.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    seed = int(args[20][:_SEED_BYTES].view(torch.int64)) if call.drops else 0
    given = (None if given[0] is None else call.turned(given[0]), *given[1:])
    values = gradients(partial(_run, call, seed), _inputs(call), given)
    states = results[1:2] if call.cx is None else results[1:3]
    for result, value in zip((call.turned(results[0]), *states, *results[3]), values, strict=False):
        result.copy_(value)
    return results


def _inputs(call: Call) -> list[torch.Tensor]:
    """Input, states and weights, in the dtype of the arithmetic."""
    states = [call.hx] if call.cx is None else [call.hx, call.cx]
    dtype = acc_type(call.tensor.dtype)
    return [one.detach().to(dtype) for one in (call.input, *states, *call.weights)]


def _run(call: Call, seed: int, tensor: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
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
        tensor, *found = _layer(call, tensor, [state[rows] for state in states], of_layer)
        last.append(found)
    return [tensor, *(torch.cat(parts) for parts in zip(*last, strict=True))]


def _layer(
    call: Call,
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
    rnn = Call(*call.args)
    output, hy, cy, reserve, buffer = call.result
    call.alloc_contiguous(rnn.input)
    call.alloc_outputs(output, hy, cy)
    if rnn.buffer is None:
        call.alloc_outputs(buffer)
    call.alloc_temp(rnn.workspace())
    call.alloc_outputs(reserve, is_estimate=True)


@_estimated("aten::_cudnn_rnn_backward", reference=_backward_reference, meta=_backward_meta)
def _backward_memory(call: OpCall) -> None:
    rnn, given, mask = _backward_call(call.args)
    grad_input, grad_hx, grad_cx, grad_weights = call.result
    if grad_input is None:
        return
    nbytes = rnn.tensor.element_size()
    for gradient, like in zip(given, (call.args[6], rnn.hx, rnn.cx), strict=True):
        if gradient is None and like is not None:
            call.alloc_temp(like.numel() * nbytes)
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if given[0] is not None:
            call.alloc_contiguous(rnn.turned(given[0]))
        call.alloc_outputs(grad_input)
        call.alloc_contiguous(*given[1:])
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
