"""Where a meta kernel's result has other sizes or strides than the op that computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


CORRECTIONS: dict[str, Correction] = {
    "aten::_embedding_bag": _embedding_bag,
}
"""By the op's name: from the call's meta tensors and its result, the result that is right."""
