"""cuDNN: the copies that its callers make, and its workspaces as far as anybody can know them.

Every plan of cuDNN has a workspace of its own, which cuDNN alone can tell. Where nothing is known
of it no bytes are counted, and the op is named among those that take memory of unknown size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import suggested
from ..memory_model import Basis, Entry, nothing
from ..rnn.call import Call, call_of_backward, separate_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch


CUDNN_WORKSPACES: Final = "cuDNN workspaces"


def copy_into(launch: Launch, tensor: torch.Tensor, layout: torch.memory_format) -> None:
    """Take the memory of a tensor's copy in another format until the op ends, if it needs one.

    Args:
        launch: of the op.
        tensor: that cuDNN reads.
        layout: that it reads.
    """
    if not tensor.is_contiguous(memory_format=layout):
        launch.copy(tensor)


def batch_norm(launch: Launch) -> None:
    """``cudnn_batch_norm``: a workspace where it trains."""
    if launch.argument(5, "training"):
        launch.unknown = CUDNN_WORKSPACES


def batch_norm_gradient(launch: Launch) -> None:
    """``cudnn_batch_norm_backward``: the gradient in the format of what was normalized."""
    tensor, gradient = launch.args[:2]
    copy_into(launch, gradient, suggested(tensor))
    launch.unknown = CUDNN_WORKSPACES


def recurrent(launch: Launch) -> None:
    """``_cudnn_rnn``: input, results, buffer of weights, workspace and reserve space."""
    call = Call(*launch.args)
    output, hy, cy, reserve, buffer = launch.result
    launch.contiguous(call.input)
    launch.made(output, hy, cy)
    if call.needs_buffer:
        launch.made(buffer)
    launch.borrow(call.workspace())
    launch.made(reserve, is_estimate=True)


def recurrent_gradients(launch: Launch) -> None:
    """``_cudnn_rnn_backward``: gradients of what comes in first, then those of the weights."""
    call, gradients, mask = call_of_backward(launch.args)
    first, of_hidden, of_cell, of_weights = launch.result
    if first is None:
        return
    nbytes = call.tensor.element_size()
    given = list(gradients)
    likes = [launch.args[6], call.hx, call.cx]
    for position, like in enumerate(likes):
        if given[position] is None and like is not None:
            launch.borrow(like.numel() * nbytes)
    with launch.scope():
        launch.contiguous(call.input)
        if given[0] is not None:
            turned = given[0].transpose(0, 1) if call.is_transposed else given[0]
            launch.contiguous(turned)
        launch.made(first)
        launch.contiguous(*given[1:])
        launch.made(of_hidden, of_cell)
        launch.borrow(call.workspace())
    if not mask[3]:
        return
    with launch.scope():
        launch.contiguous(call.input)
        if separate_gradients(call):
            launch.borrow(call.network.numel() * nbytes)
        else:
            launch.made(*of_weights)
        launch.borrow(call.workspace())
        launch.made(*of_weights)


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
