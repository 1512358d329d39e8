"""Windows of signals: the numbers that a window is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall


def blackman(call: OpCall) -> None:
    """``blackman_window``: its angles, two cosines and their difference."""
    window: torch.Tensor = call.result
    if call.args[0] < 2:
        return
    nbytes = window.untyped_storage().nbytes()
    angles, *cosines = (call.alloc_temp(nbytes) for _ in range(3))
    difference = call.alloc_temp(nbytes)
    call.alloc_outputs(window)
    for allocation in (angles, difference, *reversed(cosines)):
        call.free_temp(allocation)


def kaiser(call: OpCall) -> None:
    """``kaiser_window``: the numbers of its elements."""
    if call.args[0] > 1:
        call.alloc_temp(call.result.untyped_storage().nbytes())


_FACTORIES: Final = "aten/src/ATen/native/TensorFactories.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    **{
        f"aten::blackman_window{overload}": Entry(nothing, _FACTORIES, Basis.SOURCE, make=blackman)
        for overload in ("", ".periodic")
    },
    **{
        f"aten::kaiser_window{overload}": Entry(nothing, _FACTORIES, Basis.SOURCE, make=kaiser)
        for overload in ("", ".periodic", ".beta")
    },
}
