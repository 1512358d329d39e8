"""Losses of margins: contiguous inputs, and what is added up or written over."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_columns
from .losses import reduced_in_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_NONE: Final = 0
"""Code of ``reduction="none"``."""

_BATCHED: Final = 2


def of_classes(call: OpCall) -> None:
    """``multi_margin_loss``: contiguous inputs, and the loss of each sample to be added up."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.alloc_contiguous(*call.args[:2], call.argument(4, "weight"))
    if source.dim() == _BATCHED and call.argument(5, "reduction", 1) != _NONE:
        call.alloc_temp(source.shape[0] * source.element_size())
        stage_columns(call, source.shape[0], 1, source.dtype)


def gradient_of_classes(call: OpCall) -> None:
    """``multi_margin_loss_backward``: contiguous inputs."""
    gradient, source, target = call.args[:3]
    if source.numel():
        call.alloc_contiguous(source, gradient, target, call.argument(5, "weight"))


def of_labels_inputs(call: OpCall) -> None:
    """``multilabel_margin_loss_forward``, before its results: contiguous inputs."""
    if call.args[0].numel():
        call.alloc_contiguous(*call.args[:2])


def of_labels_results(call: OpCall) -> None:
    """``multilabel_margin_loss_forward``: which labels are set, each sample's loss, the loss."""
    source: torch.Tensor = call.args[0]
    loss, is_target = call.result
    call.alloc_outputs(is_target)
    if _is_summed(call):
        call.alloc_temp(source.shape[0] * source.element_size())
    call.alloc_outputs(loss)


def of_labels(call: OpCall) -> None:
    """``multilabel_margin_loss_forward``: the sum of each sample's loss."""
    if _is_summed(call):
        stage_columns(call, call.args[0].shape[0], 1, call.args[0].dtype)


def gradient_of_labels(call: OpCall) -> None:
    """``multilabel_margin_loss_backward``: contiguous inputs."""
    gradient, source, target, _, is_target = call.args[:5]
    if source.numel():
        call.alloc_contiguous(source, target, is_target, gradient)


def gradient_of_soft_inputs(call: OpCall) -> None:
    """``soft_margin_loss_backward``, before its result: the exponentials of a product."""
    _, source, target = call.args[:3]
    shape = torch.broadcast_shapes(source.shape, target.shape)
    products = prod(shape) * torch.promote_types(source.dtype, target.dtype).itemsize
    negative = call.alloc_temp(target.numel() * target.element_size())
    product = call.alloc_temp(products)
    call.alloc_temp(products)
    call.free_temp(product)
    call.free_temp(negative)


def _is_summed(call: OpCall) -> bool:
    source: torch.Tensor = call.args[0]
    return bool(source.numel()) and source.dim() == _BATCHED and call.args[2] != _NONE


_CLASSES: Final = "aten/src/ATen/native/cuda/MultiMarginLoss.cu"
_LABELS: Final = "aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu"
_LOSS: Final = "aten/src/ATen/native/Loss.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::multi_margin_loss": Entry(of_classes, _CLASSES, Basis.SOURCE),
    "aten::multi_margin_loss_backward": Entry(gradient_of_classes, _CLASSES, Basis.SOURCE),
    "aten::multilabel_margin_loss_forward": Entry(
        of_labels, _LABELS, Basis.SOURCE, of_labels_inputs, of_labels_results
    ),
    "aten::multilabel_margin_loss_backward": Entry(gradient_of_labels, _LABELS, Basis.SOURCE),
    "aten::soft_margin_loss": Entry(reduced_in_place(2), _LOSS, Basis.SOURCE),
    "aten::soft_margin_loss_backward": Entry(nothing, _LOSS, Basis.SOURCE, gradient_of_soft_inputs),
}
