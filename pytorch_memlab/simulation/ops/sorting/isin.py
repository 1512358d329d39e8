"""``isin``: each element is compared with each of a few, or all are sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..reduction_workspace import alloc_extremes_workspace
from ..registry import Provenance, define, op

if TYPE_CHECKING:
    from ..op_call import OpCall

_SOURCE: Final = "aten/src/ATen/native/TensorCompare.cpp, cuda/TensorCompare.cpp"

define("aten::isin.Tensor_Scalar", source=_SOURCE)


@op("aten::isin.Tensor_Tensor", provenance=Provenance.ESTIMATE, source=_SOURCE)
def _memory(call: OpCall) -> None:
    """All comparisons, and what is true of any.

    Many elements are sorted instead: the distinct ones, of which only the values tell how many.
    """
    call.alloc_outputs()
    elements, among = call.args[:2]
    if not elements.numel():
        return
    if among.numel() >= int(10 * elements.numel() ** 0.145):
        call.unknown_workspace = "memory of sorts of distinct elements"
        return
    compared = torch.empty((*elements.shape, among.numel()), dtype=torch.bool, device="meta")
    call.alloc_copy(compared)
    call.alloc_temp(elements.numel())
    alloc_extremes_workspace(call, compared, -1)
