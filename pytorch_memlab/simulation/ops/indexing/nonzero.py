"""Selection by values: counting and finding what is not zero, masks, repetitions, histograms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from ...machine.tensor_values import Bound, TensorValues
from ..core import cub
from ..core.memory_formats import MAX_INT32, laid_out_by
from ..core.op_call import INDEX, OpCall, named_arguments
from ..core.reduction_workspace import alloc_bounds, alloc_column_sums_workspace
from ..core.registry import TRUE, ZERO, AssumedSize, DataDependence, define, estimated, op
from ..reductions.reductions import scan_row

_NONZERO: Final = "aten/src/ATen/native/cuda/Nonzero.cu"
_MASKED: Final = "aten/src/ATen/native/cuda/IndexKernel.cpp, Nonzero.cu"
_SCATTER: Final = "aten/src/ATen/native/cuda/IndexKernel.cpp, IndexKernel.cu"
_BUCKETS: Final = "aten/src/ATen/native/BucketizationUtils.h, cuda/Bucketization.cu"
_HISTOGRAM: Final = "aten/src/ATen/native/cuda/SummaryOps.cu"

_COUNT: Final = 4
_CHUNK: Final = 2**30


def count_nonzero(call: OpCall, source: torch.Tensor) -> None:
    """Count the elements that are not zero, before the output of ``Nonzero.cu``."""
    call.alloc_contiguous(source)
    chunks = list(_chunks(source.numel()))
    call.alloc_temp(_COUNT * len(chunks))
    call.alloc_and_free(*(cub.reduce(call.model, chunk, _COUNT) for chunk in chunks))


def find_nonzero(call: OpCall, source: torch.Tensor) -> None:
    """Find the elements that are not zero, after the output of ``Nonzero.cu``."""
    if source.dim():
        call.alloc_and_free(*(cub.flagged(call.model, chunk) for chunk in _chunks(source.numel())))


def alloc_selected(call: OpCall, mask: torch.Tensor, count: int) -> None:
    """Allocate the indices of what a mask selects, and what finding them takes."""
    with call.scope():
        count_nonzero(call, mask)
    call.alloc_temp(count * mask.dim() * INDEX)
    with call.scope():
        find_nonzero(call, mask)


def _chunks(count: int) -> Iterator[int]:
    if count < MAX_INT32:
        yield count
        return
    for begin in range(0, count, _CHUNK):
        yield min(_CHUNK, count - begin)


def _all_nonzero(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    count = _NOT_ZERO.of(values, "aten::nonzero", tensor.numel(), tensor.numel())
    # Both devices write a row of indices for each dimension, and return them transposed.
    return values.make((tensor.dim(), count), torch.int64).t()


_NOT_ZERO: Final = AssumedSize("nonzero", TRUE, Bound.AT_MOST, "nonzero")


@estimated(
    "aten::nonzero",
    source=_NONZERO,
    data_dependence=DataDependence(outputs=_all_nonzero, size=_NOT_ZERO),
)
def _nonzero(call: OpCall) -> None:
    count_nonzero(call, call.args[0])
    call.alloc_outputs()
    find_nonzero(call, call.args[0])


_static: Final = torch.ops.aten.nonzero_static.default


@op("aten::nonzero_static", source=_NONZERO, reference=laid_out_by(_static, _static))
def _nonzero_static(call: OpCall) -> None:
    """Sums of blocks of threads, and sums of these."""
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    if not call.result.numel() or not source.numel():
        return
    call.alloc_contiguous(source)
    # BLOCK_THREADS and ITEMS_PER_THREAD of nonzero_static_cuda_out_impl.
    per_block = 512 * 16
    blocks = -(-source.numel() // per_block)
    # It wants one block for each multiprocessor, two where elements have one byte.
    target = call.model.multi_processor_count * (2 if source.element_size() == 1 else 1)
    rounds = -(-blocks // target)
    blocks = -(-source.numel() // (rounds * per_block))
    call.alloc_temps([blocks * _COUNT, blocks * INDEX])


def _all_selected(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, mask = args
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    if values.is_known(mask):
        count = int(torch.count_nonzero(mask)) * shape.numel() // max(mask.numel(), 1)
    else:
        count = _SELECTED.of(values, "aten::masked_select", shape.numel(), shape.numel())
    return values.make((count,), tensor.dtype)


_SELECTED: Final = AssumedSize("masked_select", TRUE, Bound.AT_MOST, "masked_select")


@estimated(
    "aten::masked_select",
    source=_MASKED,
    data_dependence=DataDependence(outputs=_all_selected, size=_SELECTED),
)
@estimated("aten::masked_scatter_backward", source=_MASKED)
def _masked_select(call: OpCall) -> None:
    """The indices that it selects come before the output, which shows how many they are."""
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape, (1,))
    mask = second.expand(shape)
    alloc_selected(call, mask, call.result.numel())


@estimated("aten::masked_scatter", "aten::masked_scatter_", source=_SCATTER)
def _masked_scatter(call: OpCall) -> None:
    """The index of the source of each element of the mask."""
    call.alloc_outputs()
    mask, source = call.args[1:3]
    target: torch.Tensor = call.result
    if not target.numel():
        return
    call.alloc_temp(target.numel() * INDEX)
    call.alloc_contiguous(mask.expand(target.shape))
    call.alloc_and_free(cub.scan(target.numel(), INDEX))
    call.alloc_contiguous(source)


def _each_once(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    count, repeats = kwargs.get("output_size"), args[0].numel()
    if count is None:
        count = _REPEATED.of(values, "aten::repeat_interleave", repeats, repeats)
    return values.make((count,), torch.int64)


_REPEATED: Final = AssumedSize(
    "repeat_interleave", "each element 1", Bound.EITHER, "repeat_interleave"
)


@estimated(
    "aten::repeat_interleave.Tensor",
    source="aten/src/ATen/native/Repeat.h, cuda/Repeat.cu",
    data_dependence=DataDependence(outputs=_each_once, size=_REPEATED),
)
def _repeat_interleave(call: OpCall) -> None:
    """Sums of the repetitions, and a check of them."""
    repeats: torch.Tensor = call.args[0]
    count = repeats.numel()
    if not count:
        return
    call.alloc_contiguous(repeats)
    with call.scope():
        if repeats.dtype != torch.int64:
            call.alloc_temp(count * INDEX)
        sums = count * INDEX
        call.alloc_temp(sums)
        scan_row(call, count, torch.int64)
    call.alloc_temp(sums)
    if call.argument("output_size") is None:
        with call.scope():
            call.alloc_temps([count, 1])
            alloc_column_sums_workspace(call, count, 1, torch.bool)


def _all_in_first_bin(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = named_arguments(torch.ops.aten.bincount.default, args, kwargs)
    weights, dtype = arguments["weights"], torch.int64
    if weights is not None:  # sums of floats are floats
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    tensor, fewest = arguments["self"], max(arguments["minlength"], 1)
    if not tensor.numel():
        count = arguments["minlength"]
    elif values.is_known(tensor):
        count = max(fewest, int(tensor.max()) + 1)
    else:
        count = max(fewest, _BINS.of(values, "aten::bincount", tensor.numel(), fewest))
    return values.make((count,), dtype)


_BINS: Final = AssumedSize("bincount", ZERO, Bound.AT_LEAST, "bincount")


@estimated(
    "aten::bincount",
    source=_HISTOGRAM,
    data_dependence=DataDependence(outputs=_all_in_first_bin, size=_BINS),
)
def _bincount(call: OpCall) -> None:
    alloc_bounds(call, call.args[0])


@op("aten::searchsorted.Tensor", "aten::bucketize.Tensor", source=_BUCKETS)
def _search(call: OpCall) -> None:
    """Contiguous inputs of one type."""
    call.alloc_outputs()
    values, boundaries = call.argument("self"), call.argument("sorted_sequence")
    if boundaries is None:
        boundaries = call.argument("boundaries")
    call.alloc_contiguous(values, boundaries, call.argument("sorter"))
    common = torch.result_type(boundaries, values)
    for tensor in (values, boundaries):
        if tensor.dtype != common:
            call.alloc_temp(tensor.numel() * common.itemsize)


def _all_boxes(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    boxes = args[0].shape[0]
    return values.make((_KEPT.of(values, "torchvision::nms", boxes, boxes),), torch.int64)


_KEPT: Final = AssumedSize("torchvision.ops.nms", "every box taken as kept", Bound.AT_MOST, "nms")

define("torchvision::nms", data_dependence=DataDependence(outputs=_all_boxes, size=_KEPT))
