"""Foreach ops: what norms and maxima of many tensors collect each chunk's results in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import LOW_PRECISION, is_dense
from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_sum, stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_CHUNK: Final = 65536
"""Elements that one block of threads takes."""


def norm_chunks(call: OpCall) -> None:
    """``_foreach_norm`` and ``_foreach_powsum``, before their results: sums of chunks."""
    if _norms_together(call):
        dtype = call.argument(2, "dtype") or call.args[0][0].dtype
        _collect(call, 4 if dtype in LOW_PRECISION else dtype.itemsize)


def norms(call: OpCall) -> None:
    """``_foreach_norm`` and ``_foreach_powsum``: one after another where they differ in kind."""
    if not _norms_together(call):
        for tensor in call.args[0]:
            stage_sum(call, tensor)


def largest_of_chunks(call: OpCall) -> None:
    """``_foreach_max``, before its results: the largest of each chunk."""
    if _are_alike(call.args[0]):
        _collect(call, call.args[0][0].element_size())


def largest(call: OpCall) -> None:
    """``_foreach_max``: one after another where the tensors differ in kind."""
    if not _are_alike(call.args[0]):
        for tensor in call.args[0]:
            stage_values(call, tensor)


def _collect(call: OpCall, width: int) -> None:
    tensors: list[torch.Tensor] = call.args[0]
    most = max(-(-tensor.numel() // _CHUNK) for tensor in tensors)
    call.alloc_temp(len(tensors) * most * width)


def _norms_together(call: OpCall) -> bool:
    tensors: list[torch.Tensor] = call.args[0]
    order = call.argument(1, "ord", 2)
    return (
        order in (1, 2, float("inf"))
        and _are_alike(tensors)
        and all(tensor.is_floating_point() for tensor in tensors)
    )


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    first = tensors[0]
    return all(tensor.dtype == first.dtype and is_dense(tensor) for tensor in tensors)


_FOREACH: Final = "aten/src/ATen/native/cuda/ForeachReduceOp.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_foreach_norm.Scalar": Entry(norms, _FOREACH, Basis.SOURCE, norm_chunks),
    "aten::_foreach_max": Entry(largest, _FOREACH, Basis.SOURCE, largest_of_chunks),
    **(
        {"aten::_foreach_powsum.Scalar": Entry(norms, _FOREACH, Basis.SOURCE, norm_chunks)}
        if hasattr(torch.ops.aten, "_foreach_powsum")
        else {}
    ),
}
