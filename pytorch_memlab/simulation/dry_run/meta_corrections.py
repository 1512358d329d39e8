"""Where a meta kernel's result has other sizes or strides than the op that computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Correction = Callable[[tuple[Any, ...], Any], Any]


def _embedding_bag(args: tuple[Any, ...], result: Any) -> Any:
    """The map from indices to bags has one entry more than it shows; bags have a largest index."""
    output, bags, sizes, largest = result
    if bags.numel():
        bags = bags.new_empty(bags.numel() + 1)[:-1]
    if not largest.numel():
        largest = sizes.new_empty(sizes.shape)
    return output, bags, sizes, largest


def _reduced_loss(args: tuple[Any, ...], result: Any) -> Any:
    """A mean or a sum lies in the memory of the elements' losses, of which it is the first."""
    if result.dim() or not args[0].dim():
        return result
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return result.new_empty(shape.numel() or 1).as_strided((), ())


CORRECTIONS: dict[str, Correction] = {
    "aten::_embedding_bag": _embedding_bag,
    "aten::mse_loss": _reduced_loss,
    "aten::smooth_l1_loss": _reduced_loss,
    "aten::soft_margin_loss": _reduced_loss,
    "aten::binary_cross_entropy": _reduced_loss,
}
"""By the op's name: from the call's meta tensors and its result, the result that is right."""
