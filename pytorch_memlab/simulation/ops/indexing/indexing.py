"""Indexing, scatters, embeddings: copies of indices, masks made into indices, sorts of indices."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch._C import _functorch as functorch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from ...machine.op_arguments import is_mask, tensors_in
from ...machine.refused_calls import mixed_devices
from ...machine.simulated_gpu import SimulatedGPU
from ..core import cub
from ..core.memory_formats import LOW_PRECISION, acc_type
from ..core.op_call import INDEX, OpCall, named_arguments
from ..core.registry import MASKS, define, estimated, op, recorded
from .nonzero import alloc_selected

Indices = list[torch.Tensor | None]

_SOURCE: Final = "aten/src/ATen/native/cuda/Indexing.cu, TensorAdvancedIndexingUtils.h"
_TAKES_MASKS: Final[dict[str, Any]] = {"takes_cpu_tensors": True, "data_dependence": MASKS}


@recorded("aten::index.Tensor", source=_SOURCE, **_TAKES_MASKS)
@op("aten::_unsafe_index.Tensor", source=_SOURCE, **_TAKES_MASKS)
def _read(call: OpCall) -> None:
    """Indices become 64-bit numbers of the GPU, laid out alike, or masks become indices."""
    source, indices = call.args[:2]
    _check_devices(call)
    if any(map(is_mask, indices)):
        rest = _elements_per_index(source, indices)
        _expand_masks(call, indices, call.result.numel() // max(1, rest))
    else:
        _alloc_indices(call, _given(indices))


def _check_devices(call: OpCall) -> None:
    """Refuse indices on another GPU than that of the tensor, or into a tensor on the CPU."""
    find = call.machine.allocations.find
    source = find(call.args[0])
    for index in map(find, _given(call.args[1])):
        if source is None or (index is not None and index.gpu is not source.gpu):
            where = "cpu" if source is None else source.gpu.device
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({where})"
            )


def _alloc_indices(call: OpCall, indices: list[torch.Tensor]) -> None:
    for index in indices:
        if call.is_on_cpu(index) or index.dtype != torch.int64:
            call.alloc_temp(index.numel() * INDEX)
    if len(indices) > 1:
        _align(call, indices)


@recorded(
    "aten::index_put", source=_SOURCE, in_place_in=frozenset({"IndexBackward"}), **_TAKES_MASKS
)
@op(
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index_put",
    source=_SOURCE,
    **_TAKES_MASKS,
)
def _write(call: OpCall) -> None:
    """With ``accumulate`` the indices are made linear, and sorted."""
    target, indices, values = call.args[:3]
    _check_devices(call)
    tensors = _given(indices)
    masked = any(map(is_mask, tensors))
    accumulates = call.argument("accumulate")
    if masked and not accumulates and values.numel() == 1:
        return  # it is a ``masked_fill_``
    if values.dim() and call.is_on_cpu(values) and not _is_number_of_vmap(call, values):
        raise mixed_devices(call.op, call.gpu, "cpu")
    if not values.dim() and call.is_on_cpu(values):
        call.alloc_copy(values)  # a number goes to the GPU
    rest = _elements_per_index(target, indices)
    shape = torch.broadcast_shapes(*(index.shape for index in tensors if not is_mask(index)))
    if masked:
        shape = torch.Size([values.numel() // max(1, rest)])
        _expand_masks(call, indices, shape[0])
    if not accumulates and not torch.are_deterministic_algorithms_enabled():
        if not masked:
            _alloc_indices(call, tensors)
        return
    _make_linear(call, tensors, prod(shape) * INDEX)
    elements = prod(shape) * rest
    if values.numel() != elements or not values.is_contiguous():
        call.alloc_temp(elements * values.element_size())
    if elements:
        _sort(call, prod(shape), _largest_index(target, indices))


def _is_number_of_vmap(call: OpCall, values: torch.Tensor) -> bool:
    """True for ``x[i] = 1`` under ``vmap``, which C++ takes for a number of the CPU and expands."""
    if values.untyped_storage().nbytes() != values.element_size():
        return False
    made_by = call.machine.thread.call
    return made_by is not None and any(
        map(functorch.is_functorch_wrapped_tensor, tensors_in(*made_by))
    )


def _make_linear(call: OpCall, indices: list[torch.Tensor], nbytes: int) -> None:
    """The offset of each index in its turn, and their sum."""
    positions = [index for index in indices for _ in range(index.dim() if is_mask(index) else 1)]
    for position, index in enumerate(positions):
        if call.is_on_cpu(index):
            offsets = call.alloc_temp(nbytes)
        else:
            wrapped = call.alloc_temp(nbytes)
            offsets = call.alloc_temp(nbytes)
            call.free_temp(wrapped)
        if position > 0:
            call.free_temp(offsets)


def _sort(call: OpCall, count: int, largest: int) -> None:
    call.alloc_temps([count * INDEX] * 3)  # sorted indices, their order and a range
    bits = max(1, largest.bit_length())
    nbytes = cub.radix_sort(call.model, count, INDEX, INDEX, bits=bits)
    call.is_confirmed &= nbytes == 1  # recordings show sorts of a single block only
    call.alloc_temp(nbytes)


def _expand_masks(call: OpCall, indices: Indices, count: int) -> None:
    """The indices of what masks select, and what finding them takes."""
    call.is_confirmed = False
    for mask in filter(is_mask, indices):
        if call.is_on_cpu(mask):
            call.alloc_temp(count * mask.dim() * INDEX)
        else:
            alloc_selected(call, mask, count)


def _align(call: OpCall, indices: list[torch.Tensor]) -> None:
    """Copies of indices whose strides differ once they are broadcast."""
    expanded = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in expanded}) > 1:
        for index in expanded:
            if not index.is_contiguous():
                call.alloc_temp(index.numel() * INDEX)


def _elements_per_index(target: torch.Tensor, indices: Indices) -> int:
    """Elements of the dimensions that no index stands for."""
    sizes = list(target.shape)
    rest = 1
    for index in indices:
        if index is None:
            rest *= sizes.pop(0)
        else:
            del sizes[: index.dim() if is_mask(index) else 1]
    return rest * prod(sizes)


def _largest_index(target: torch.Tensor, indices: Indices) -> int:
    """The largest linear index, in slices of the dimensions behind the indexed ones."""
    indexed = 0
    for index in indices:
        indexed += index.dim() if is_mask(index) else 1
    while indices and indices[-1] is None:
        indices = indices[:-1]
        indexed -= 1
    largest = sum(
        (size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True)
    )
    return largest // max(1, prod(target.shape[indexed:]))


def _given(indices: Indices) -> list[torch.Tensor]:
    return [index for index in indices if index is not None]


_PLACED: Final = frozenset(
    f"{name}Backward"
    for name in ("Max", "Min", "Median", "Nanmedian", "Mode", "Kthvalue", "Sort", "Topk")
)
_ADDED: Final = frozenset({"GatherBackward", "CummaxBackward", "CumminBackward"})

define("aten::scatter.src", in_place_in=_PLACED)
define(
    "aten::scatter_add",
    source="aten/src/ATen/native/cuda/ScatterGatherKernel.cu",
    in_place_in=_ADDED,
)
define("aten::index_add", in_place_in=frozenset({"IndexSelectBackward"}))
define("aten::index_fill.int_Tensor", in_place_in=frozenset({"TraceBackward"}))
define("aten::put", in_place_in=frozenset({"TakeBackward"}))


@op(
    "aten::scatter_reduce.two",
    "aten::scatter_reduce_.two",
    source="aten/src/ATen/native/TensorAdvancedIndexing.cpp",
)
def _scatter_reduce(call: OpCall) -> None:
    """Of a mean, ones, how many were added to each element, and where none."""
    call.alloc_outputs()
    source: torch.Tensor = call.args[3]
    result: torch.Tensor = call.result
    if call.args[4] == "mean":
        call.alloc_copy(source)
        call.alloc_copy(result)
        call.alloc_temp(result.numel())


_BACKWARD: Final = "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"
_BAG: Final = "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu"

_UNSORTED: Final = 3072
"""Most indices whose gradients are added up without sorting them:
``embedding_dense_backward_cuda`` in ``Embedding.cu``."""

# ``NROWS_PER_THREAD`` and ``MAX_ATOMIC_ACCUM_BLOCKS_PER_SM`` in ``EmbeddingBackwardKernel.cu``,
# and ``MAX_BLOCK_SIZE`` in ``SortingCommon.cuh``.
_ROWS_PER_THREAD: Final = 10
_MOST_BLOCKS_PER_PROCESSOR: Final = 4
_MOST_THREADS: Final = 1024
_MAX: Final = 2
"""Mode of an embedding bag that takes the largest of each column."""


@estimated("aten::embedding_dense_backward", source=_BACKWARD)
@estimated("aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward", source=_BAG)
def _embedding_backward(call: OpCall) -> None:
    """Indices are sorted, unless they are few or for ``max``; gradients are summed in parts."""
    grad_output, indices = call.args[:2]
    call.alloc_contiguous(indices, grad_output)
    mode, counts = call.argument("mode"), call.argument("scale_grad_by_freq")
    is_sorted = indices.numel() > _UNSORTED or counts
    if mode is not None:
        is_sorted = mode != _MAX and not call.argument("sparse") and indices.numel()
    if is_sorted:
        _sort_by_row(call, indices, counts=counts)
    call.alloc_outputs()
    if is_sorted:
        _sum_rows(call, indices, grad_output.dtype, is_bag=mode is not None)


def _sort_by_row(call: OpCall, indices: torch.Tensor, *, counts: bool) -> None:
    """The sorted indices and their order, and what sorting takes."""
    count, width = indices.numel(), indices.element_size()
    nbytes = count * width
    call.alloc_temps([nbytes] * 2)  # sorted indices and their order
    with call.scope():
        call.alloc_temps([nbytes, cub.radix_sort(call.model, count, width, width)])
    if counts:
        call.alloc_temp(nbytes)
        call.alloc_and_free(*[cub.scan_by_key(call.model, count, width)] * 2)


def _sum_rows(call: OpCall, indices: torch.Tensor, dtype: torch.dtype, *, is_bag: bool) -> None:
    """The sums of the gradients of sorted indices: ``EmbeddingBackwardKernel.cu``."""
    rows, columns = call.result.shape
    count, width = indices.numel(), indices.element_size()
    accumulated = acc_type(dtype).itemsize
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    call.alloc_temps([count * width, 8])
    with call.scope():
        call.alloc_temps([count * width, cub.select(count, width)])
    call.alloc_temps([segments * width] * 2)  # partial sums and offsets
    call.alloc_and_free(cub.scan(segments, width))
    call.alloc_temps([8, partial * width])
    if is_bag or not _adds_atomically(call, segments, partial, columns):
        call.alloc_temp(partial * columns * accumulated)
        return
    call.alloc_temp(partial * width)
    if dtype in LOW_PRECISION:
        call.alloc_temp(rows * columns * accumulated)


def _adds_atomically(call: OpCall, segments: int, partial: int, columns: int) -> bool:
    """True if partial sums go to the gradient at once: when few rows get many."""
    padded = -(-columns // 32) * 32
    blocks = -(-segments * padded // min(padded, _MOST_THREADS))
    return (
        _runs_at_once(call.model, blocks)
        and partial > blocks * 4
        and not torch.are_deterministic_algorithms_enabled()
    )


@decision
def _runs_at_once(gpu: GPU, blocks: int) -> bool:
    """True if so many blocks of threads are fewer than the GPU runs at once."""
    return blocks < gpu.multi_processor_count * _MOST_BLOCKS_PER_PROCESSOR


def _bag_outputs(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    _scale_grad_by_freq: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    _per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    *_padding_idx: int,
) -> tuple[torch.Tensor, ...]:
    """The bags, the bag of each index, the size of each bag, and the largest elements' indices."""
    # A CPU makes the second only where its kernels read it, and the last for each mode.
    bags = offsets.shape[0] - include_last_offset
    index = torch.promote_types(indices.dtype, offsets.dtype)
    output = weight.new_empty(bags, weight.shape[1])
    offset2bag = indices.new_empty(indices.shape[0], dtype=index)
    bag_size = indices.new_empty(offsets.shape, dtype=index)
    largest = indices.new_empty(output.shape if mode == _MAX else 0, dtype=index)
    return output, offset2bag, bag_size, largest


def _bag_on_cpu(kernel: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The results of the CPU's kernel, in the outputs that CUDA makes."""

    def reference(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        named = named_arguments(kernel, args, kwargs)
        output, _, sizes, largest = kernel(*args, **kwargs)
        _, offset2bag, bag_size, max_indices = _bag_outputs(*named.values())
        bags = output.shape[0]
        begins = named["offsets"][:bags].to(offset2bag.dtype)
        positions = torch.arange(offset2bag.numel(), dtype=offset2bag.dtype)
        offset2bag.copy_(torch.searchsorted(begins, positions, right=True).sub_(1))
        bag_size.zero_()[:bags].copy_(sizes[:bags])
        if max_indices.numel():
            max_indices.copy_(largest)
        return output, offset2bag, bag_size, max_indices

    return reference


def _bag(call: OpCall) -> None:
    """Indices and offsets get one dtype; the bags come third: ``_embedding_bag_cuda``."""
    output, offset2bag, bag_size, largest = call.result
    for index in call.args[1:3]:
        if index.dtype != offset2bag.dtype:
            call.alloc_temp(index.numel() * offset2bag.element_size())
    call.alloc_outputs(bag_size, offset2bag, output, largest)


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    _kernel = getattr(torch.ops.aten, _name).default
    op(f"aten::{_name}", source=_BAG, meta=_bag_outputs, reference=_bag_on_cpu(_kernel))(_bag)


def _one_hot(_gpu: SimulatedGPU, classes: torch.Tensor, count: int = -1) -> Any:
    """No look at the classes, which CUDA's scatter checks, but for their number if it is asked."""
    if classes.dtype is not torch.int64 or not classes.numel():
        return NotImplemented
    if count == -1:
        count = int(classes.max().item()) + 1
    elif count < 1:
        raise RuntimeError("num_classes should be positive")
    return classes.new_zeros((*classes.shape, count)).scatter_(-1, classes.unsqueeze(-1), 1)


define("aten::one_hot", cuda_dispatch=_one_hot)
