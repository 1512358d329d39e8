"""cuDNN: the copies that its callers make, and its workspaces as far as anybody can know them.

Every plan of cuDNN has a workspace of its own, which cuDNN alone can tell. Where nothing is known
of it no bytes are counted, and the op is named among those that take memory of unknown size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import suggest_memory_format
from ..memory_model import Basis, Entry, nothing
from ..rnn.call import Call, call_of_backward, separate_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


CUDNN_WORKSPACES: Final = "cuDNN workspaces"


def copy_into(call: OpCall, tensor: torch.Tensor, layout: torch.memory_format) -> None:
    """Take the memory of a tensor's copy in another format until the op ends, if it needs one."""
    if not tensor.is_contiguous(memory_format=layout):
        call.alloc_copy(tensor)


def batch_norm(call: OpCall) -> None:
    """``cudnn_batch_norm``: a workspace where it trains."""
    if call.argument(5, "training"):
        call.unknown_workspace = CUDNN_WORKSPACES


def batch_norm_gradient(call: OpCall) -> None:
    """``cudnn_batch_norm_backward``: the gradient in the format of what was normalized."""
    tensor, gradient = call.args[:2]
    copy_into(call, gradient, suggest_memory_format(tensor))
    call.unknown_workspace = CUDNN_WORKSPACES


def recurrent(call: OpCall) -> None:
    """``_cudnn_rnn``: input, results, buffer of weights, workspace and reserve space."""
    rnn = Call(*call.args)
    output, hy, cy, reserve, buffer = call.result
    call.alloc_contiguous(rnn.input)
    call.alloc_outputs(output, hy, cy)
    if rnn.needs_buffer:
        call.alloc_outputs(buffer)
    call.alloc_temp(rnn.workspace())
    call.alloc_outputs(reserve, is_estimate=True)


def recurrent_gradients(call: OpCall) -> None:
    """``_cudnn_rnn_backward``: gradients of what comes in first, then those of the weights."""
    rnn, gradients, mask = call_of_backward(call.args)
    first, of_hidden, of_cell, of_weights = call.result
    if first is None:
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
        call.alloc_outputs(first)
        call.alloc_contiguous(*given[1:])
        call.alloc_outputs(of_hidden, of_cell)
        call.alloc_temp(rnn.workspace())
    if not mask[3]:
        return
    with call.scope():
        call.alloc_contiguous(rnn.input)
        if separate_gradients(rnn):
            call.alloc_temp(rnn.network.numel() * nbytes)
        else:
            call.alloc_outputs(*of_weights)
        call.alloc_temp(rnn.workspace())
        call.alloc_outputs(*of_weights)


_BATCH_NORM: Final = "aten/src/ATen/native/cudnn/BatchNorm.cpp"
_RNN: Final = "aten/src/ATen/native/cudnn/RNN.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::cudnn_batch_norm": Entry(batch_norm, _BATCH_NORM, Basis.ESTIMATE),
    "aten::cudnn_batch_norm_backward": Entry(
        nothing, _BATCH_NORM, Basis.ESTIMATE, batch_norm_gradient
    ),
    "aten::_cudnn_rnn": Entry(nothing, _RNN, Basis.ESTIMATE, make=recurrent),
    "aten::_cudnn_rnn_backward": Entry(nothing, _RNN, Basis.ESTIMATE, make=recurrent_gradients),
}
