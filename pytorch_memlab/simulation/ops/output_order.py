"""Ops whose kernels make their results in another order than they return them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
