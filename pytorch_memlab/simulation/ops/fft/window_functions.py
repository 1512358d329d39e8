"""Windows of signals: the numbers that a window is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..registry import op

if TYPE_CHECKING:
    import torch

    from ..op_call import OpCall

_SOURCE: Final = "aten/src/ATen/native/TensorFactories.cpp"


@op("aten::blackman_window", "aten::blackman_window.periodic", source=_SOURCE)
def _blackman(call: OpCall) -> None:
    """The angles, two cosines and their difference."""
    window: torch.Tensor = call.result
    if call.args[0] < 2:
        return
    nbytes = window.untyped_storage().nbytes()
    angles, *cosines = (call.alloc_temp(nbytes) for _ in range(3))
    difference = call.alloc_temp(nbytes)
    call.alloc_outputs(window)
    for allocation in (angles, difference, *reversed(cosines)):
        call.free_temp(allocation)


def _kaiser_meta(args: tuple[Any, ...], result: Any) -> Any:
    """A periodic window is one of a number more, without its last."""
    length, periodic = (*args, True)[:2]
    return result.new_empty(length + 1)[:-1] if periodic and length > 1 else result


@op(
    "aten::kaiser_window",
    "aten::kaiser_window.periodic",
    "aten::kaiser_window.beta",
    source=_SOURCE,
    corrects_meta=_kaiser_meta,
)
def _kaiser(call: OpCall) -> None:
    """The numbers of the elements."""
    if call.args[0] > 1:
        call.alloc_temp(call.result.untyped_storage().nbytes())
