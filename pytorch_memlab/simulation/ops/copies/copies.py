"""Copies between host and GPU: what is staged on the GPU when the two are laid out differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_formats import is_dense
from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def make(call: OpCall) -> None:
    """``_to_copy``: a copy into its result."""
    source: torch.Tensor = call.args[0]
    _copy(call, call.result, source, call.kwargs.get("non_blocking", False))


def overwrite(call: OpCall) -> None:
    """``copy_``: a copy into its first argument."""
    target, source = call.args[:2]
    _copy(call, target, source, call.argument(2, "non_blocking", False))


def _copy(call: OpCall, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Take what ``copy_kernel_cuda`` of ``aten/src/ATen/native/cuda/Copy.cu`` stages on the GPU.

    The other side's share is made on the host. A copy converts on the GPU if it need not wait.
    """
    from_host = call.is_on_cpu(source)
    if from_host == (call.is_on_cpu(target)):
        return
    same = source.dtype == target.dtype
    if not source.numel() or (same and _are_laid_out_alike(target, source)):
        return
    count = target.numel()
    if from_host and non_blocking:
        if not (target.is_contiguous() and same):
            call.alloc_temp(count * source.element_size())
    elif from_host:
        if not target.is_contiguous():
            call.alloc_temp(count * target.element_size())
    elif non_blocking:
        converted = source
        if not same:
            converted = torch.empty_like(source, dtype=target.dtype, device="meta")
            call.alloc_copy(converted)
        if not (converted.is_contiguous() and source.shape == target.shape):
            call.alloc_temp(count * target.element_size())
    elif not (source.is_contiguous() and source.shape == target.shape):
        call.alloc_temp(count * source.element_size())


def _are_laid_out_alike(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether one copy of memory does: elements lie side by side, in the same order."""
    if target.is_contiguous() and source.is_contiguous():
        return target.shape == source.shape or target.numel() == 1
    if target.shape != source.shape or not is_dense(target):
        return False
    steps = zip(target.shape, target.stride(), source.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in steps)


_COPY: Final = "aten/src/ATen/native/cuda/Copy.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_to_copy": Entry(make, _COPY, Basis.SOURCE),
    "aten::copy_": Entry(overwrite, _COPY, Basis.SOURCE),
}
