"""Ops whose kernels make their results in another order than they return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .op_call import OpCall


def in_order(*positions: int) -> Callable[[OpCall], None]:
    """Results made one after another.

    Args:
        positions: of the op's results, in the order in which its kernel makes them.

    Returns:
        ``make`` of an entry.
    """

    def make(call: OpCall) -> None:
        call.alloc_outputs(*(call.result[position] for position in positions))

    return make


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::native_dropout": Entry(
        nothing, "aten/src/ATen/native/cuda/Dropout.cu", Basis.SOURCE, make=in_order(1, 0)
    ),
}
