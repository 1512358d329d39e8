"""Attention of modules in evaluation: the softmax of scores of which a mask excludes some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall

_MOST_ELEMENTS: Final = 1024
_MOST_BYTES: Final = 4096
"""Of a row of scores that the threads of a warp keep in their registers."""

_OF_SEQUENCE, _SCORES = 0, 4
"""A mask's type for ``(length, length)``, and the dimensions of the scores it is expanded to."""


def _make_masked_softmax(call: OpCall) -> None:
    """``_masked_softmax``: beyond registers, a softmax of scores filled with minus infinity.

    Its result takes the place of the one that was made first.
    """
    scores: torch.Tensor = call.args[0]
    if _fits_registers(call, scores):
        return
    first = call.alloc_temp(scores.numel() * scores.element_size())
    call.alloc_copy(scores)
    call.alloc_outputs(call.result)
    call.free_temp(first)


def _fits_registers(call: OpCall, scores: torch.Tensor) -> bool:
    mask: torch.Tensor = call.args[1]
    dim = call.argument(2, "dim")
    if dim is not None and dim < scores.dim() - 1:
        return False
    is_square = call.argument(3, "mask_type") == _OF_SEQUENCE and mask.dim() != scores.dim()
    if is_square and scores.dim() == _SCORES:
        mask = mask.expand(scores.shape)
    size = scores.shape[-1] if scores.dim() else 1
    return (
        size <= _MOST_ELEMENTS
        and size * scores.element_size() <= _MOST_BYTES
        and mask.is_contiguous()
    )


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_masked_softmax": Entry(
        nothing,
        "aten/src/ATen/native/cuda/SoftMax.cu",
        Basis.SOURCE,
        make=_make_masked_softmax,
    ),
    "aten::_transform_bias_rescale_qkv": Entry(
        nothing, "aten/src/ATen/native/transformers/cuda/attention.cu", Basis.SOURCE
    ),
}
