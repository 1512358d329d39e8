"""Copies of FSDP: the packed numbers that tell a kernel where each of many tensors lies.

The kernels copy many tensors at once. Addresses, sizes and blocks are packed into one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod, sqrt
from typing import Final

import torch

from .core.memory_formats import can_view, is_dense
from .core.op_call import INDEX, OpCall
from .core.registry import define, op

_SOURCE: Final = "aten/src/ATen/native/cuda/TensorShape.cu"
# ``BLOCK_SIZE`` there, and its ``BYTES_PER_THREAD``.
_THREADS: Final = 128
_BYTES_PER_BLOCK: Final = _THREADS * 16


@op("aten::split_with_sizes_copy.out", "fsdp::split_with_sizes_copy", source=_SOURCE)
def _split(call: OpCall) -> None:
    """The address of each split, and its blocks."""
    call.alloc_outputs()
    source, sizes = call.args[:2]
    dim = call.argument("dim") % source.dim()
    results = call.kwargs["out"]
    if not source.numel() or not is_dense(source):
        return
    if any(not is_dense(result) or result.dtype != source.dtype for result in results):
        return
    width = source.stride(dim) * source.element_size()
    chunks = source.numel() // prod(source.shape[dim:])
    blocks = _blocks_of_splits(call, [size * width for size in sizes], chunks)
    call.alloc_temp((3 * len(sizes) + blocks + len(sizes) + 1) * INDEX)


def _blocks_of_splits(call: OpCall, splits: Sequence[int], chunks: int) -> int:
    """Blocks of threads for a chunk of every split."""
    gpu = call.model
    alone = sum(-(-nbytes // _BYTES_PER_BLOCK) for nbytes in splits)
    resident = gpu.multi_processor_count * gpu.max_threads_per_multi_processor // _THREADS
    rounds = -(-alone * chunks // (2 * resident))
    rounds_of_chunk = -(-rounds // min(ceil(sqrt(rounds)), chunks))
    return sum(-(-nbytes // (_BYTES_PER_BLOCK * rounds_of_chunk)) for nbytes in splits)


@op("aten::_chunk_cat", "fsdp::chunk_cat", source=_SOURCE)
def _chunk_cat(call: OpCall) -> None:
    """Padded copies of what does not lie side by side; else where each chunk is, and its blocks."""
    tensors: Sequence[torch.Tensor] = call.args[0]
    dim, chunks = call.argument("dim") % tensors[0].dim(), call.argument("num_chunks")
    out = call.kwargs.get("out")
    if not _is_packed(tensors, out):
        for tensor in tensors:
            leading, shape = prod(tensor.shape[:dim]), (*tensor.shape[:dim], chunks, -1)
            if tensor.shape[dim] % chunks or not can_view(tensor, shape):
                padded = leading * _chunk(tensor, dim, chunks) * chunks
                call.alloc_temp(padded * tensor.element_size())
        return
    call.alloc_outputs()
    width = tensors[0].element_size() if out is None else out.element_size()
    # get_chunk_cat_metadata packs six numbers for each tensor; two of its vectors begin with a 0.
    call.alloc_temp((6 * len(tensors) + 2 + _blocks(tensors, dim, chunks, width)) * INDEX)


@op("fsdp::chunk_cat_mixed_dtype", source="torch/csrc/distributed/fsdp/ChunkCat.cpp, ChunkCat.cu")
def _chunk_cat_of_dtypes(call: OpCall) -> None:
    """As ``_chunk_cat`` for one dtype. Of several, the kernel casts, or each is cast before it."""
    tensors: Sequence[torch.Tensor] = call.args[0]
    dim, chunks = call.argument("dim") % tensors[0].dim(), call.argument("num_chunks")
    out: torch.Tensor = call.kwargs["out"]
    if len({tensor.dtype for tensor in tensors}) == 1:
        _chunk_cat(call)
        return
    width = out.element_size()
    blocks = _blocks(tensors, dim, chunks, width)
    if dim == 0 and out.is_contiguous() and all(_is_cast(tensor, out) for tensor in tensors):
        # chunk_cat_mixed_dtype_cuda in ChunkCat.cu packs the same vectors, but without the 0.
        call.alloc_temp((6 * len(tensors) + blocks) * INDEX)
        return
    for tensor in tensors:
        if tensor.dtype != out.dtype:
            call.alloc_temp(tensor.numel() * width)
    call.alloc_temp((6 * len(tensors) + 2 + blocks) * INDEX)


def _is_cast(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """True if the kernel that joins tensors of several dtypes reads this one."""
    return _converts(tensor, result) and tensor.is_contiguous() and tensor.numel() > 0


def _converts(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """True if the kernels have the conversion from one dtype to another, or need none."""
    dtypes = (tensor.dtype, result.dtype)
    return dtypes[0] == dtypes[1] or dtypes == (torch.bfloat16, torch.float32)


def _blocks(tensors: Sequence[torch.Tensor], dim: int, chunks: int, width: int) -> int:
    """Blocks of threads for a chunk of every tensor, in a result of this element size."""
    return sum(-(-_chunk(tensor, dim, chunks) * width // _BYTES_PER_BLOCK) for tensor in tensors)


def _chunk(tensor: torch.Tensor, dim: int, chunks: int) -> int:
    """Elements of a chunk of a tensor, padded, for one index of the dimensions before."""
    return -(-tensor.shape[dim] // chunks) * prod(tensor.shape[dim + 1 :])


def _is_packed(tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> bool:
    """True if one kernel joins tensors: they and their result lie side by side."""
    fits = out is None or (_converts(tensors[0], out) and is_dense(out))
    return fits and all(map(is_dense, tensors))


define("aten::split_with_sizes_copy", source="aten/src/ATen/native/TensorShape.cpp")
define("fsdp::all_gather_copy_in", source="aten/src/ATen/native/cuda/ForeachBinaryOpList.cu")
define("_c10d_functional::wait_tensor", touches_no_element=True)
