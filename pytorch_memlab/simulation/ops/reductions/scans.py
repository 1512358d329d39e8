"""Scans: contiguous copies, and the temporary storage of a scan of one row."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from .. import cub
from ..op_call import OpCall
from ..registry import estimated, op

_MOST_AT_ONCE: Final = 2**30
"""Elements that one call of CUB scans."""

_ITEMS: Final = 16
"""Elements that a thread of a deterministic scan takes."""

_SOURCE: Final = "aten/src/ATen/native/cuda/ScanKernels.cpp, ScanUtils.cuh"


def _scan(call: OpCall, *, is_sum: bool = False) -> None:
    """A contiguous input of the result's type, and the scan of a row."""
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    result: torch.Tensor = call.result
    if not tensor.dim() or not tensor.numel():
        return
    nbytes = tensor.numel() * result.element_size()
    if tensor.dtype != result.dtype:
        call.alloc_temp(nbytes)
    call.alloc_contiguous(result)
    if not tensor.is_contiguous():
        call.alloc_temp(nbytes)
    if tensor.numel() == tensor.shape[call.argument("dim")]:
        scan_row(call, tensor.numel(), result.dtype, is_sum=is_sum)


def scan_row(call: OpCall, count: int, dtype: torch.dtype, *, is_sum: bool = True) -> None:
    """Allocate and free the temporary storage of a scan of one row."""
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
            call.alloc_temps([size, cub.scan(min(count - begin, _MOST_AT_ONCE), size)])


@op("aten::cummax", "aten::cummin", source=_SOURCE)
def _rows_with_indices(call: OpCall) -> None:
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    if tensor.dim() and tensor.numel():
        call.alloc_contiguous(tensor)


estimated("aten::cumsum", "aten::cumsum_", source=_SOURCE)(partial(_scan, is_sum=True))
estimated(
    "aten::cumprod", "aten::cumprod_", "aten::logcumsumexp", "aten::_logcumsumexp", source=_SOURCE
)(_scan)
