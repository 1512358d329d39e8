"""Losses: the unreduced loss of each element, and the stages of its mean or sum."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..convolution.cudnn import CUDNN_WORKSPACES
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_columns, stage_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..op_call import OpCall

_NONE: Final = 0
"""Code of ``reduction="none"``."""

_INDEX: Final = 8


def of_pairs(call: OpCall) -> None:
    """``mse_loss``, ``smooth_l1_loss``: each element's loss is kept until it is reduced."""
    if call.argument(2, "reduction", 1) == _NONE:
        return
    count, dtype = _broadcast(call)
    call.alloc_temp(count * dtype.itemsize)
    stage_columns(call, count, 1, dtype)


def each_pair(call: OpCall) -> None:
    """``huber_loss``, before its result: each element's loss."""
    if call.argument(2, "reduction", 1) != _NONE:
        count, dtype = _broadcast(call)
        call.alloc_temp(count * dtype.itemsize)


def reduced_pairs(call: OpCall) -> None:
    """``huber_loss``: the mean or sum of each element's loss."""
    if call.argument(2, "reduction", 1) != _NONE:
        stage_columns(call, _broadcast(call)[0], 1, call.result.dtype)


def reduced_in_place(position: int) -> Callable[[OpCall], None]:
    """A loss whose mean or sum is copied into the losses of the elements."""

    def take(call: OpCall) -> None:
        source: torch.Tensor = call.args[0]
        if call.argument(position, "reduction", 1) != _NONE:
            call.alloc_temp(source.element_size())
            stage_sum(call, source)

    return take


def with_logits(call: OpCall) -> None:
    """``binary_cross_entropy_with_logits``, before its result: its terms one by one."""
    source, pos_weight = call.args[0], call.argument(3, "pos_weight")
    call.alloc_copy(source)
    if pos_weight is not None:
        with call.scope():
            call.alloc_copy(pos_weight)
            call.alloc_copy(source)
    if call.argument(4, "reduction", 1) != _NONE:
        call.alloc_copy(source)


def reduced_logits(call: OpCall) -> None:
    """``binary_cross_entropy_with_logits``: the mean or sum of each element's loss."""
    if call.argument(4, "reduction", 1) != _NONE:
        stage_sum(call, call.args[0])


def nll(weight_position: int) -> Callable[[OpCall], None]:
    """``nll_loss_forward`` and its like: contiguous inputs."""

    def take(call: OpCall) -> None:
        call.alloc_contiguous(*call.args[: weight_position + 1])

    return take


def nll_gradient(call: OpCall) -> None:
    """``nll_loss_backward``: contiguous targets and weights."""
    call.alloc_contiguous(*call.args[2:4])


def ctc_lengths(call: OpCall) -> None:
    """``_ctc_loss``, before its results: the lengths and offsets of a batch on the GPU."""
    batch = call.args[0].shape[1]
    for _targets_inputs_and_offsets in range(3):
        call.alloc_temp(batch * _INDEX)


def ctc_gradient_inputs(call: OpCall) -> None:
    """``_ctc_loss_backward``, before its result: the lengths, and beta, as large as alpha."""
    probabilities, alpha = call.args[1], call.argument(6, "log_alpha")
    for _targets_inputs_and_offsets in range(3):
        call.alloc_temp(probabilities.shape[1] * _INDEX)
    call.alloc_temp(alpha.numel() * alpha.element_size())


def ctc_gradient(call: OpCall) -> None:
    """``_ctc_loss_backward``: for large problems, the blanks' share of the gradient."""
    probabilities, alpha = call.args[1], call.argument(6, "log_alpha")
    steps, batch, labels = probabilities.shape
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= 450:
        return
    width = probabilities.element_size()
    joined = batch * alpha.shape[1] * (alpha.shape[2] // 2 + 1) * width
    row = batch * alpha.shape[1] * width
    with call.scope():
        call.alloc_temp(joined)
        call.alloc_temp(row)
        call.alloc_temp(joined)
    if call.argument(8, "zero_infinity", False):
        with call.scope():
            call.alloc_temp(batch)
            call.alloc_temp(width)
            call.alloc_copy(probabilities)


def cudnn_ctc_inputs(call: OpCall) -> None:
    """``_cudnn_ctc_loss`` with lengths in tensors, before its results: copies of the host's."""
    for given in call.args[1:4]:
        if call.is_on_cpu(given):
            call.alloc_copy(given)


def cudnn_ctc(call: OpCall) -> None:
    """``_cudnn_ctc_loss``: the gradient, a workspace of cuDNN's choice, the losses."""
    losses, gradient = call.result
    call.alloc_outputs(gradient, losses)
    call.unknown_workspace = CUDNN_WORKSPACES


def _broadcast(call: OpCall) -> tuple[int, torch.dtype]:
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return prod(shape), torch.promote_types(first.dtype, second.dtype)


_LOSS: Final = "aten/src/ATen/native/Loss.cpp"
_NLL: Final = "aten/src/ATen/native/cuda/Loss.cu"
_NLL2D: Final = "aten/src/ATen/native/cuda/NLLLoss2d.cu"
_CTC: Final = "aten/src/ATen/native/cuda/LossCTC.cu"
_CUDNN_CTC: Final = "aten/src/ATen/native/cudnn/LossCTC.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::mse_loss": Entry(of_pairs, _LOSS, Basis.SOURCE),
    "aten::smooth_l1_loss": Entry(of_pairs, _LOSS, Basis.SOURCE),
    "aten::huber_loss": Entry(reduced_pairs, _LOSS, Basis.SOURCE, each_pair),
    "aten::binary_cross_entropy": Entry(reduced_in_place(3), _NLL, Basis.SOURCE),
    "aten::binary_cross_entropy_with_logits": Entry(
        reduced_logits, _LOSS, Basis.SOURCE, with_logits
    ),
    "aten::nll_loss_forward": Entry(nll(2), _NLL, Basis.SOURCE),
    "aten::nll_loss_backward": Entry(nll_gradient, _NLL, Basis.SOURCE),
    "aten::nll_loss2d_forward": Entry(nll(2), _NLL2D, Basis.SOURCE),
    "aten::nll_loss2d_backward": Entry(nll(3), _NLL2D, Basis.SOURCE),
    "aten::_ctc_loss": Entry(nothing, _CTC, Basis.SOURCE, ctc_lengths),
    "aten::_ctc_loss_backward": Entry(ctc_gradient, _CTC, Basis.ESTIMATE, ctc_gradient_inputs),
    "aten::_cudnn_ctc_loss": Entry(nothing, _CUDNN_CTC, Basis.ESTIMATE, make=cudnn_ctc),
    "aten::_cudnn_ctc_loss.Tensor": Entry(
        nothing, _CUDNN_CTC, Basis.ESTIMATE, cudnn_ctc_inputs, cudnn_ctc
    ),
}
