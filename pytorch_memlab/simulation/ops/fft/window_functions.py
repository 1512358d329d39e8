"""Windows of signals: the numbers that a window is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import Launch


def blackman(launch: Launch) -> None:
    """``blackman_window``: its angles, two cosines and their difference."""
    window: torch.Tensor = launch.result
    if launch.args[0] < 2:
        return
    nbytes = window.untyped_storage().nbytes()
    angles, *cosines = (launch.borrow(nbytes) for _ in range(3))
    difference = launch.borrow(nbytes)
    launch.made(window)
    for placement in (angles, difference, *reversed(cosines)):
        launch.give_back(placement)


def kaiser(launch: Launch) -> None:
    """``kaiser_window``: the numbers of its elements."""
    if launch.args[0] > 1:
        launch.borrow(launch.result.untyped_storage().nbytes())


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
