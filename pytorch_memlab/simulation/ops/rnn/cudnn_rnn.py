"""``_cudnn_rnn`` and its backward pass: what they return, computed on the CPU.

What that is, ``aten/src/ATen/native/cudnn/RNN.cpp`` tells. The seed of the dropout lies at the
start of the reserve space.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import Provenance, op
from .call import Call, call_of_backward, separate_gradients
from .layout import given_parts, views
from .reference import CPUNetwork

if TYPE_CHECKING:
    from ..op_call import OpCall

_SOURCE: Final = "aten/src/ATen/native/cudnn/RNN.cpp"
_SEED_BYTES: Final = 8

_NOT_FLAT: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to "
    "be compacted at every call, possibly greatly increasing memory usage. To compact weights "
    "again call flatten_parameters()."
)


def _meta(*args: Any) -> tuple[torch.Tensor, ...]:
    call = Call(*args)
    call.check()
    tensor, cx = call.tensor, call.cx
    output = tensor.new_empty(call.output_size())
    return (
        output.transpose(0, 1) if call.is_transposed else output,
        call.hx.new_empty(call.hidden_size()),
        call.hx.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        tensor.new_empty(call.reserve(), dtype=torch.uint8),
        tensor.new_empty(call.network.numel()) if call.buffer is None else call.buffer,
    )


def _reference(*args: Any) -> tuple[torch.Tensor, ...]:
    call = Call(*args)
    if call.needs_buffer:
        warnings.warn(_NOT_FLAT, stacklevel=2)
    results = _meta(*args)
    output, hy, cy, reserve, buffer = results
    if call.needs_buffer:
        _fill(call, buffer)
    seed = 0
    if call.dropout and reserve.numel() >= _SEED_BYTES:
        seed = int(torch.randint(2**62, (), device="cpu"))
        reserve[:_SEED_BYTES].view(torch.int64).fill_(seed)
    values = CPUNetwork(call).run(seed)
    output.copy_(values[0].transpose(0, 1) if call.is_transposed else values[0])
    hy.copy_(values[1])
    if call.cx is not None:
        cy.copy_(values[2])
    return results


def _backward_meta(*args: Any) -> tuple[Any, ...]:
    call, gradients, mask = call_of_backward(args)
    if all(gradient is None for gradient in gradients):
        return None, None, None, []
    cx = call.cx
    first = call.tensor.new_empty(call.input.shape)
    return (
        first.transpose(0, 1) if call.is_transposed else first,
        call.hx.new_empty(call.hidden_size()),
        None if cx is None else cx.new_empty(cx.shape),
        _weight_gradients(call) if mask[3] else [],
    )


def _backward_reference(*args: Any) -> tuple[Any, ...]:
    call, gradients, _mask = call_of_backward(args)
    results = _backward_meta(*args)
    if results[0] is None:
        return results
    if not call.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    reserve = args[20]
    seed = int(reserve[:_SEED_BYTES].view(torch.int64)) if call.dropout else 0
    values = CPUNetwork(call).gradients(seed, gradients)
    first = values[0].transpose(0, 1) if call.is_transposed else values[0]
    made = [results[0], results[1], *(() if call.cx is None else (results[2],)), *results[3]]
    for result, value in zip(made, [first, *values[1:]], strict=False):
        result.copy_(value)
    return results


def _fill(call: Call, buffer: torch.Tensor) -> None:
    parts = [given_parts(layer, call.count) for layer in call.network.parts()]
    flat = [view for layer in views(buffer.zero_(), parts) for view in layer]
    for weight, view in zip(call.weights, flat, strict=True):
        view.copy_(weight.view_as(view))


def _weight_gradients(call: Call) -> list[torch.Tensor]:
    if separate_gradients(call):
        return [weight.new_empty(weight.shape) for weight in call.weights]
    buffer = call.tensor.new_empty(call.network.numel())
    found = [view for layer in views(buffer, call.network.parts()) for view in layer]
    return [view.view(weight.shape) for view, weight in zip(found, call.weights, strict=True)]


@op(
    "aten::_cudnn_rnn",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_reference,
    meta=_meta,
)
def _memory(call: OpCall) -> None:
    rnn = Call(*call.args)
    output, hy, cy, reserve, buffer = call.result
    call.alloc_contiguous(rnn.input)
    call.alloc_outputs(output, hy, cy)
    if rnn.needs_buffer:
        call.alloc_outputs(buffer)
    call.alloc_temp(rnn.workspace())
    call.alloc_outputs(reserve, is_estimate=True)


@op(
    "aten::_cudnn_rnn_backward",
    provenance=Provenance.ESTIMATE,
    source=_SOURCE,
    reference=_backward_reference,
    meta=_backward_meta,
)
def _backward_memory(call: OpCall) -> None:
    rnn, gradients, mask = call_of_backward(call.args)
    grad_input, grad_hx, grad_cx, grad_weights = call.result
    if grad_input is None:
        return
    nbytes = rnn.tensor.element_size()
    given = list(gradients)
    likes = [call.args[6], rnn.hx, rnn.cx]
    for position, like in enumerate(likes):
        if given[position] is None and like is not None:
            call.alloc_temp(like.numel() * nbytes)
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if given[0] is not None:
            turned = given[0].transpose(0, 1) if rnn.is_transposed else given[0]
            call.alloc_contiguous(turned)
        call.alloc_outputs(grad_input)
        call.alloc_contiguous(*given[1:])
        call.alloc_outputs(grad_hx, grad_cx)
        call.alloc_temp(rnn.workspace())
    if not mask[3]:
        return
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if separate_gradients(rnn):
            call.alloc_temp(rnn.network.numel() * nbytes)
        else:
            call.alloc_outputs(*grad_weights)
        call.alloc_temp(rnn.workspace())
        call.alloc_outputs(*grad_weights)
