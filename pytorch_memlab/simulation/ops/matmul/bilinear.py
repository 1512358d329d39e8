"""Bilinear layers: products of slices, one after another, that are added up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...machine.simulated_gpu import Allocation
from ..memory_formats import can_view, on_meta
from ..op_call import OpCall
from ..reduction_workspace import alloc_sum_workspace
from ..registry import op
from .cublas import multiply_batches


@op("aten::_trilinear", source="aten/src/ATen/native/Linear.cpp")
def _trilinear(call: OpCall) -> None:
    """Two products of each slice of the operands, of which the second is added."""
    call.alloc_outputs()
    tensors, expanded, summed = call.args[:3], call.args[3:6], call.args[6]
    unrolled = call.argument("unroll_dim")
    if not all(tensor.numel() for tensor in tensors):
        return
    operands = [on_meta(tensor) for tensor in tensors]
    for position, dims in enumerate(expanded):
        for dim in sorted(dims):
            operands[position] = operands[position].unsqueeze(dim)
    count = max(operand.shape[unrolled] for operand in operands)
    slices = [operand.narrow(unrolled, 0, 1) for operand in operands]
    dims = [dim for dim in sorted(summed) if dim != unrolled]
    first = [dim for dim in dims if dim in expanded[2]]
    second = [dim for dim in dims if dim not in expanded[2]]
    for _slice in range(count):
        with call.scope():
            product, allocation = _multiply_pair(call, slices[0], slices[1], first)
            _multiply_pair(call, product, slices[2], second)
            call.free_temp(allocation)


def _multiply_pair(
    call: OpCall, left: torch.Tensor, right: torch.Tensor, dims: Sequence[int]
) -> tuple[torch.Tensor, Allocation]:
    """Allocate the sum of a product over dimensions, and free the copies of its factors."""
    if not dims:
        product = left * right
        return product, call.alloc_temp(product.numel() * product.element_size())
    copies: list[Allocation] = []
    for dim in dims:
        if (left.shape[dim] == 1) != (right.shape[dim] == 1):
            source = right if left.shape[dim] == 1 else left
            total = source.sum(dim, True)
            copies.append(call.alloc_temp(total.numel() * total.element_size()))
            alloc_sum_workspace(call, source, dim)
            left, right = (left, total) if source is right else (total, right)
    kept = [dim for dim in range(left.dim()) if dim not in dims]
    both = [dim for dim in kept if left.shape[dim] != 1 and right.shape[dim] != 1]
    of_left = [dim for dim in kept if left.shape[dim] != 1 and right.shape[dim] == 1]
    of_right = [dim for dim in kept if left.shape[dim] == 1]
    rows = _flatten(call, left, (both, of_left, [*dims, *of_right]), copies)
    columns = _flatten(call, right, (both, dims, [*of_right, *of_left]), copies)
    product = rows @ columns
    allocation = call.alloc_temp(product.numel() * product.element_size())
    with call.scope():
        multiply_batches(call, rows, columns, product)
    for copy in copies:
        call.free_temp(copy)
    order = [*both, *of_left, *dims, *of_right]
    sizes = [1 if dim in dims else max(left.shape[dim], right.shape[dim]) for dim in order]
    return product.view(sizes).permute([order.index(dim) for dim in range(left.dim())]), allocation


def _flatten(
    call: OpCall,
    tensor: torch.Tensor,
    groups: tuple[Sequence[int], Sequence[int], Sequence[int]],
    copies: list[Allocation],
) -> torch.Tensor:
    """A batch of matrices whose dimensions are those of three groups: a copy if it cannot view."""
    permuted = tensor.permute([dim for group in groups for dim in group])
    shape = [torch.Size([tensor.shape[dim] for dim in group]).numel() for group in groups]
    if not can_view(permuted, shape):
        copies.append(call.alloc_temp(tensor.numel() * tensor.element_size()))
    return permuted.reshape(shape)
