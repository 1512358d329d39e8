"""Membership: each element is compared with each of a few, or all are sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def find(call: OpCall) -> None:
    """``isin``: all comparisons, and what is true of any; what a sort of many takes is not known.

    The sort is of distinct elements, of which nobody knows how many there are.
    """
    elements, among = call.args[:2]
    if not elements.numel():
        return
    if among.numel() >= int(10 * elements.numel() ** 0.145):
        call.unknown_workspace = "memory of sorts of distinct elements"
        return
    compared = torch.empty((*elements.shape, among.numel()), dtype=torch.bool, device="meta")
    call.alloc_copy(compared)
    call.alloc_temp(elements.numel())
    stage_values(call, compared, -1)


_COMPARE: Final = "aten/src/ATen/native/TensorCompare.cpp, cuda/TensorCompare.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::isin.Tensor_Tensor": Entry(find, _COMPARE, Basis.ESTIMATE),
    "aten::isin.Tensor_Scalar": Entry(nothing, _COMPARE, Basis.SOURCE),
}
