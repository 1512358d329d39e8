"""Where a meta kernel's result has other sizes or strides than the op that computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

if TYPE_CHECKING:
    from collections.abc import Callable

    Correction = Callable[[tuple[Any, ...], Any], Any]

_CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)


def _convolution(args: tuple[Any, ...], result: Any) -> Any:
    """A convolution of anything that has its channels last has its channels last."""
    formats = [suggest_memory_format(tensor) for tensor in args[:2]]
    wanted = next((one for one in formats if one in _CHANNELS_LAST), None)
    return result if wanted is None else result.to(memory_format=wanted)


def _batch_norm(args: tuple[Any, ...], result: Any) -> Any:
    """Statistics are saved for backward when training only."""
    is_training = args[5]
    if is_training:
        return result
    return (result[0], result[1].new_empty(0), result[2].new_empty(0))


def _embedding_bag(args: tuple[Any, ...], result: Any) -> Any:
    """The map from indices to bags has one entry more than it shows; bags have a largest index."""
    output, bags, sizes, largest = result
    if bags.numel():
        bags = bags.new_empty(bags.numel() + 1)[:-1]
    if not largest.numel():
        largest = sizes.new_empty(sizes.shape)
    return output, bags, sizes, largest


CORRECTIONS: dict[str, Correction] = {
    "aten::convolution": _convolution,
    "aten::native_batch_norm": _batch_norm,
    "aten::_embedding_bag": _embedding_bag,
}
"""By the op's name: from the call's meta tensors and its result, the result that is right."""
