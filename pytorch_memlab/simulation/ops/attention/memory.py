"""Fused attention: split keys' accumulators, sums of gradients, accumulated gradients."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import torch

from ...hardware.decisions import decision
from ..convolution.cudnn import CUDNN_WORKSPACES
from ..memory_model import Basis, Entry, nothing
from .backward_tiles import tile_of, workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...hardware.gpu import GPU
    from ..op_call import OpCall

_FLOAT: Final = 4
_UINT64: Final = 8
_ROWS: Final = 128
"""Queries that flash attention's accumulators are a multiple of."""

_MOST_SPLITS: Final = 128
_MOST_IN_REGISTERS: Final = 128


def splits_of(blocks: int, processors: int, key_blocks: int) -> int:
    """Parts in which flash attention shares out the keys (``num_splits_heuristic``)."""
    if blocks >= 0.8 * processors:
        return 1
    most = min(_MOST_SPLITS, processors, key_blocks)
    use = {
        count: blocks * count / processors / ceil(blocks * count / processors)
        for count in range(1, most + 1)
        if count == 1 or ceil(key_blocks / count) != ceil(key_blocks / (count - 1))
    }
    best = max(use.values(), default=0.0)
    return next((count for count, good in use.items() if good >= 0.85 * best), 1)


def _make_flash(call: OpCall) -> None:
    result, sums, random, unused = (call.result[index] for index in (0, 1, 6, 7))
    dropout = call.argument(3, "dropout_p", 0.0)
    call.alloc_outputs(result, sums)
    if not dropout and result.shape[0]:
        _split_keys(call)
    if random.dtype != torch.uint64:
        return
    if not dropout:
        call.alloc_outputs(random, unused)
        return
    # The kernel makes the random state twice, and drops the first.
    first = call.alloc_temp(2 * _UINT64)
    call.alloc_outputs(unused, random)
    call.free_temp(first)


def _split_keys(call: OpCall) -> None:
    query, key = call.args[:2]
    batch, heads, queries, size = query.shape
    if queries == 1 and heads > key.shape[1]:
        queries, heads = heads // key.shape[1], key.shape[1]
    rows = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks = batch * heads * ceil(queries / 64)
    splits = _splits(call.model, blocks, ceil(key.shape[2] / rows))
    if splits > 1:
        sums = splits * batch * heads * queries * _FLOAT
        call.alloc_temp(sums)
        call.alloc_temp(sums * _rounded_head(size))


@decision
def _splits(gpu: GPU, blocks: int, parts: int) -> int:
    return splits_of(blocks, 2 * gpu.multi_processor_count, parts)


def _flash_gradients(call: OpCall) -> None:
    query, key = call.args[1:3]
    batch, heads, queries, size = query.shape
    if not batch:
        return
    rows = batch * heads * (queries + -queries % _ROWS)
    parts = 1
    if _is_deterministic():
        parts = ceil(call.model.multi_processor_count / (batch * heads))
    call.alloc_temp(rows * _FLOAT)
    call.alloc_temp(parts * rows * _rounded_head(size) * _FLOAT)
    if key.shape[1] != heads:
        for _ in range(2):
            call.alloc_temp(batch * key.shape[2] * heads * size * query.element_size())


def _rounded_head(size: int) -> int:
    return size + -size % (32 if size <= 128 else 64)


def _contiguous(*positions: int) -> Callable[[OpCall], None]:
    """Copies of what does not have its heads behind its sequence in memory."""

    def prepare(call: OpCall) -> None:
        call.alloc_contiguous(*(call.args[position].transpose(1, 2) for position in positions))

    return prepare


def _make_efficient(call: OpCall) -> None:
    result, sums = call.result[:2]
    call.alloc_outputs(result, sums)
    query = call.args[0]
    size = max(query.shape[-1], result.shape[-1])
    if query.dtype != torch.float32 and size > _MOST_IN_REGISTERS:
        call.alloc_temp(result.numel() * _FLOAT)


def _efficient_gradients(call: OpCall) -> None:
    _, query, key, value = call.args[:4]
    batch, heads, queries, size = query.shape
    head = size, value.shape[-1]
    has_dropout = bool(call.args[9])
    tile = tile_of(call.model, query.dtype, max(head), has_dropout)
    if tile.delta:
        call.alloc_temp(batch * heads * queries * _FLOAT)
    else:
        _sum_products(call)
    sizes = batch, heads, queries, key.shape[2]
    nbytes = workspace(tile, sizes, head, split=not _is_deterministic())
    if nbytes:
        call.alloc_temp(nbytes)


def _sum_products(call: OpCall) -> None:
    """Result times gradient in float32, summed over the head dimension, heads before queries."""
    result = call.args[5]
    batch, heads, queries, _ = result.shape
    copies = 0 if result.dtype == torch.float32 else 2
    wide = [call.alloc_temp(result.numel() * _FLOAT) for _ in range(copies)]
    product = call.alloc_temp(result.numel() * _FLOAT)
    sums = call.alloc_temp(batch * heads * queries * _FLOAT)
    if heads > 1 and queries > 1:
        call.alloc_temp(batch * heads * queries * _FLOAT)
        call.free_temp(sums)
    for allocation in (product, *wide):
        call.free_temp(allocation)


def _make_cudnn(call: OpCall) -> None:
    result = call.result
    call.alloc_outputs(result[6], result[7], result[0], result[1])
    call.unknown_workspace = CUDNN_WORKSPACES


def _prepare_cudnn_gradients(call: OpCall) -> None:
    gradient = call.args[0]
    if gradient.stride(-1) != 1:
        call.alloc_copy(gradient)


def _cudnn_gradients(call: OpCall) -> None:
    """What cuDNN's frontend asks for; what its engine asks for besides is not known."""
    query = call.args[1]
    batch, heads, queries, size = query.shape
    call.alloc_temp(batch * heads * queries * (size + 1) * _FLOAT)
    call.unknown_workspace = CUDNN_WORKSPACES


def _is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    )


_FLASH: Final = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_EFFICIENT: Final = "aten/src/ATen/native/transformers/cuda/attention.cu"
_EFFICIENT_BACKWARD: Final = "aten/src/ATen/native/transformers/cuda/attention_backward.cu"
_CUDNN: Final = "aten/src/ATen/native/cudnn/MHA.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_scaled_dot_product_flash_attention": Entry(
        nothing, _FLASH, Basis.SOURCE, make=_make_flash
    ),
    "aten::_scaled_dot_product_flash_attention_backward": Entry(
        _flash_gradients, _FLASH, Basis.SOURCE, prepare=_contiguous(0, 4)
    ),
    "aten::_scaled_dot_product_efficient_attention": Entry(
        nothing, _EFFICIENT, Basis.SOURCE, make=_make_efficient
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": Entry(
        _efficient_gradients, _EFFICIENT_BACKWARD, Basis.SOURCE, prepare=_contiguous(0)
    ),
    "aten::_scaled_dot_product_cudnn_attention": Entry(
        nothing, _CUDNN, Basis.ESTIMATE, make=_make_cudnn
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": Entry(
        _cudnn_gradients, _CUDNN, Basis.ESTIMATE, prepare=_prepare_cudnn_gradients
    ),
}
