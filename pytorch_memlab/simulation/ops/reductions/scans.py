"""Scans: contiguous copies, and the temporary storage of a scan of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .. import cub
from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..op_call import OpCall

_MOST_AT_ONCE: Final = 2**30
"""Elements that one call of CUB scans."""

_ITEMS: Final = 16
"""Elements that a thread of a deterministic scan takes."""


def scans(*, is_sum: bool) -> Callable[[OpCall], None]:
    """``cumsum``, ``cumprod``, ``logcumsumexp``: a contiguous input of the result's type."""

    def take(call: OpCall) -> None:
        source: torch.Tensor = call.args[0]
        result: torch.Tensor = call.result
        if not source.dim() or not source.numel():
            return
        nbytes = source.numel() * result.element_size()
        if source.dtype != result.dtype:
            call.alloc_temp(nbytes)
        call.alloc_contiguous(result)
        if not source.is_contiguous():
            call.alloc_temp(nbytes)
        if source.numel() == source.shape[call.argument(1, "dim")]:
            scan_row(call, source.numel(), result.dtype, is_sum=is_sum)

    return take


def scan_row(call: OpCall, count: int, dtype: torch.dtype, *, is_sum: bool = True) -> None:
    """Take what a scan of one row needs, and give it back."""
    size = dtype.itemsize
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if is_sum and is_inexact and torch.are_deterministic_algorithms_enabled():
        threads = 128 if size >= 16 else 256 if size >= 8 else 512
        blocks = -(-count // (threads * _ITEMS))
        call.alloc_and_free(min(blocks, call.model.multi_processor_count) * size)
        return
    call.alloc_and_free(cub.scan(min(count, _MOST_AT_ONCE), size))
    for begin in range(_MOST_AT_ONCE, count, _MOST_AT_ONCE):
        with call.scope():
            call.alloc_temp(size)
            call.alloc_temp(cub.scan(min(count - begin, _MOST_AT_ONCE), size))


def rows_with_indices(call: OpCall) -> None:
    """``cummax`` and ``cummin``: a contiguous input."""
    source: torch.Tensor = call.args[0]
    if source.dim() and source.numel():
        call.alloc_contiguous(source)


_SCAN: Final = "aten/src/ATen/native/cuda/ScanKernels.cpp, ScanUtils.cuh"

ENTRIES: Final[Mapping[str, Entry]] = {
    **{
        name: Entry(scans(is_sum=is_sum), _SCAN, Basis.ESTIMATE)
        for name, is_sum in (
            ("aten::cumsum", True),
            ("aten::cumsum_", True),
            ("aten::cumprod", False),
            ("aten::cumprod_", False),
            ("aten::logcumsumexp", False),
            ("aten::_logcumsumexp", False),
        )
    },
    "aten::cummax": Entry(rows_with_indices, _SCAN, Basis.SOURCE),
    "aten::cummin": Entry(rows_with_indices, _SCAN, Basis.SOURCE),
}
