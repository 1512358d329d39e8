"""Scattered reductions: what counts the elements of a mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall


def reduce(call: OpCall) -> None:
    """``scatter_reduce``: of a mean, ones, how many were added to each element, and where none."""
    source: torch.Tensor = call.args[3]
    result: torch.Tensor = call.result
    if call.args[4] == "mean":
        call.alloc_copy(source)
        call.alloc_copy(result)
        call.alloc_temp(result.numel())


_SCATTER: Final = "aten/src/ATen/native/TensorAdvancedIndexing.cpp"
_reduce = Entry(reduce, _SCATTER, Basis.SOURCE)

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::scatter_reduce.two": _reduce,
    "aten::scatter_reduce_.two": _reduce,
}
