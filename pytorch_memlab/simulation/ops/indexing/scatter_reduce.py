"""Scattered reductions: what counts the elements of a mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import op

if TYPE_CHECKING:
    import torch

    from ..op_call import OpCall


@op(
    "aten::scatter_reduce.two",
    "aten::scatter_reduce_.two",
    source="aten/src/ATen/native/TensorAdvancedIndexing.cpp",
)
def _memory(call: OpCall) -> None:
    """Of a mean, ones, how many were added to each element, and where none."""
    call.alloc_outputs()
    source: torch.Tensor = call.args[3]
    result: torch.Tensor = call.result
    if call.args[4] == "mean":
        call.alloc_copy(source)
        call.alloc_copy(result)
        call.alloc_temp(result.numel())
