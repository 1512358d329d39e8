"""Losses: the unreduced loss of each element, and the stages of its mean or sum."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..convolution.cudnn_memory import CUDNN_WORKSPACES
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_columns, stage_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..op_call import Launch

_NONE: Final = 0
"""Code of ``reduction="none"``."""

_INDEX: Final = 8


def of_pairs(launch: Launch) -> None:
    """``mse_loss``, ``smooth_l1_loss``: each element's loss is kept until it is reduced."""
    if launch.argument(2, "reduction", 1) == _NONE:
        return
    count, dtype = _broadcast(launch)
    launch.borrow(count * dtype.itemsize)
    stage_columns(launch, count, 1, dtype)


def each_pair(launch: Launch) -> None:
    """``huber_loss``, before its result: each element's loss."""
    if launch.argument(2, "reduction", 1) != _NONE:
        count, dtype = _broadcast(launch)
        launch.borrow(count * dtype.itemsize)


def reduced_pairs(launch: Launch) -> None:
    """``huber_loss``: the mean or sum of each element's loss."""
    if launch.argument(2, "reduction", 1) != _NONE:
        stage_columns(launch, _broadcast(launch)[0], 1, launch.result.dtype)


def reduced_in_place(position: int) -> Callable[[Launch], None]:
    """A loss whose mean or sum is copied into the losses of the elements.

    Args:
        position: of ``reduction`` among the op's arguments.

    Returns:
        the entry's function.
    """

    def take(launch: Launch) -> None:
        source: torch.Tensor = launch.args[0]
        if launch.argument(position, "reduction", 1) != _NONE:
            launch.borrow(source.element_size())
            stage_sum(launch, source)

    return take


def with_logits(launch: Launch) -> None:
    """``binary_cross_entropy_with_logits``, before its result: its terms one by one."""
    source, pos_weight = launch.args[0], launch.argument(3, "pos_weight")
    launch.copy(source)
    if pos_weight is not None:
        with launch.scope():
            launch.copy(pos_weight)
            launch.copy(source)
    if launch.argument(4, "reduction", 1) != _NONE:
        launch.copy(source)


def reduced_logits(launch: Launch) -> None:
    """``binary_cross_entropy_with_logits``: the mean or sum of each element's loss."""
    if launch.argument(4, "reduction", 1) != _NONE:
        stage_sum(launch, launch.args[0])


def nll(weight_position: int) -> Callable[[Launch], None]:
    """``nll_loss_forward`` and its like: contiguous inputs.

    Args:
        weight_position: of the weight among the op's arguments.

    Returns:
        the entry's function.
    """

    def take(launch: Launch) -> None:
        launch.contiguous(*launch.args[: weight_position + 1])

    return take


def nll_gradient(launch: Launch) -> None:
    """``nll_loss_backward``: contiguous targets and weights."""
    launch.contiguous(*launch.args[2:4])


def ctc_lengths(launch: Launch) -> None:
    """``_ctc_loss``, before its results: the lengths and offsets of a batch on the GPU."""
    batch = launch.args[0].shape[1]
    for _targets_inputs_and_offsets in range(3):
        launch.borrow(batch * _INDEX)


def ctc_gradient_inputs(launch: Launch) -> None:
    """``_ctc_loss_backward``, before its result: the lengths, and beta, as large as alpha."""
    probabilities, alpha = launch.args[1], launch.argument(6, "log_alpha")
    for _targets_inputs_and_offsets in range(3):
        launch.borrow(probabilities.shape[1] * _INDEX)
    launch.borrow(alpha.numel() * alpha.element_size())


def ctc_gradient(launch: Launch) -> None:
    """``_ctc_loss_backward``: for large problems, the blanks' share of the gradient."""
    probabilities, alpha = launch.args[1], launch.argument(6, "log_alpha")
    steps, batch, labels = probabilities.shape
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= 450:
        return
    width = probabilities.element_size()
    joined = batch * alpha.shape[1] * (alpha.shape[2] // 2 + 1) * width
    row = batch * alpha.shape[1] * width
    with launch.scope():
        launch.borrow(joined)
        launch.borrow(row)
        launch.borrow(joined)
    if launch.argument(8, "zero_infinity", False):
        with launch.scope():
            launch.borrow(batch)
            launch.borrow(width)
            launch.copy(probabilities)


def cudnn_ctc_inputs(launch: Launch) -> None:
    """``_cudnn_ctc_loss`` with lengths in tensors, before its results: copies of the host's."""
    for given in launch.args[1:4]:
        if launch.machine.placements.find(given) is None:
            launch.copy(given)


def cudnn_ctc(launch: Launch) -> None:
    """``_cudnn_ctc_loss``: the gradient, a workspace of cuDNN's choice, the losses."""
    losses, gradient = launch.result
    launch.made(gradient, losses)
    launch.unknown = CUDNN_WORKSPACES


def _broadcast(launch: Launch) -> tuple[int, torch.dtype]:
    first, second = launch.args[:2]
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
