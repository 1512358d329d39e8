"""Copies between the GPUs of one process: ``torch.nn.parallel.comm`` and ``torch.cuda.nccl``.

The rules are those of ``torch/csrc/cuda/comm.cpp``. Where a CUDA build uses NCCL, nothing but the
results is taken from PyTorch's allocator; NCCL's own buffers come from the driver and are not
counted, and a warning of the functions of ``torch.cuda.nccl`` says so.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._utils import (
    _flatten_dense_tensors,
    _flatten_sparse_tensors,
    _reorder_tensors_as,
    _unflatten_dense_tensors,
)

from ..._common.patching.patches import Patches
from ..machine.machine import Machine

Tensors = Sequence[torch.Tensor]
Copies = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""Tensors that are written, and what is written to them."""

_COPIES = (
    *("broadcast", "broadcast_out", "broadcast_coalesced", "scatter", "scatter_out", "gather"),
    "gather_out",
)
_CPU_INDEX = -1  # the CPU as a destination of ``gather``
_COMBINE: dict[int, Callable[[Any, Any], Any]] = {
    0: operator.add,
    1: operator.mul,
    2: torch.maximum,
    3: torch.minimum,
    4: operator.add,
}
"""The operations of ``ncclRedOp_t``: sum, product, maximum, minimum, average."""
_AVERAGE = 4


def install(machine: Machine, patches: Patches) -> None:
    copies = _Communication(machine)
    patches.set_all(torch._C, {f"_{name}": getattr(copies, name) for name in _COPIES})
    patches.set_all(torch._C, _nccl_calls(machine))


class _Communication:
    """The copies, bound to one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def broadcast(self, tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        """The tensor on each GPU; where it is already it is no copy."""
        where = tensor.get_device()

        def copy(device: int) -> torch.Tensor:
            made = torch.empty_like(tensor, device=self._machine.gpu(device).device)
            return made.copy_(tensor, non_blocking=True)

        return [tensor if device == where else copy(device) for device in devices]

    def broadcast_out(self, tensor: torch.Tensor, out: Tensors) -> Tensors:
        """The tensor copied into others."""
        for position, target in enumerate(out):
            self._check_is_on_gpu(target, "output", "output tensor", position)
            if target.shape != tensor.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{list(tensor.shape)}, but output tensor at index {position} has shape "
                    f"{list(target.shape)}"
                )
        for target in out:
            target.copy_(tensor, non_blocking=True)
        return out

    def broadcast_coalesced(
        self, tensors: Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """Tensors on each GPU, many of them in one copy; the first GPU has them already."""
        first = self._machine.gpu(devices[0])
        if any(self._machine.gpu_of(tensor) is not first for tensor in tensors):
            raise RuntimeError("All tensors must be on devices[0]: " + str(devices[0]))
        results: list[list[torch.Tensor]] = [list(tensors), *([] for _ in devices[1:])]
        for chunk in _chunks(tensors, buffer_size):
            for made, copies in zip(results[1:], self._copies(chunk, devices), strict=True):
                made.extend(copy.data for copy in copies)  # each has its own version counter
        return [results[0], *(list(_reorder_tensors_as(made, tensors)) for made in results[1:])]

    def _copies(self, chunk: list[torch.Tensor], devices: Sequence[int]) -> Iterator[Any]:
        """Copies of like tensors on each GPU but the first."""
        if not chunk[0].is_sparse:
            flat = self.broadcast(_flatten_dense_tensors(chunk), devices)
            return (_unflatten_dense_tensors(part, chunk) for part in flat[1:])
        indices, values = (
            self.broadcast(flat, devices)[1:] for flat in _flatten_sparse_tensors(chunk)
        )
        return (_sparse(chunk, *pair) for pair in zip(indices, values, strict=True))

    def scatter(
        self,
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        streams: Sequence[Any] | None,
    ) -> list[torch.Tensor]:
        """Parts of a tensor, one on each GPU; the part that is there already is a view."""
        if not devices:
            raise RuntimeError("Expected at least one device to scatter to")
        if chunk_sizes is None:
            chunks = tensor.chunk(len(devices), dim)
        else:
            if len(chunk_sizes) != len(devices):
                raise RuntimeError(
                    "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
                    f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
                )
            chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
        parts = []
        each_stream = itertools.chain(streams or (), itertools.repeat(None))
        for position, chunk in enumerate(chunks):
            device, stream = devices[position], next(each_stream)
            _check_stream(stream, device, position)
            with torch.cuda.stream(stream):
                parts.append(chunk.to(self._machine.gpu(device).device, non_blocking=True))
        return parts

    def scatter_out(
        self, tensor: torch.Tensor, out: Tensors, dim: int, streams: Sequence[Any] | None
    ) -> Tensors:
        """Parts of a tensor copied into others."""
        if not out:
            raise RuntimeError("Expected at least one output tensor to scatter to")
        dim += tensor.dim() if dim < 0 else 0
        for position, target in enumerate(out):
            self._check_is_on_gpu(target, "output", "output tensor", position)
            if _without(target.shape, dim) != _without(tensor.shape, dim):
                raise RuntimeError(
                    f"Output tensor at index {position} has incorrect shape: {list(target.shape)}. "
                    f"Expected same shape except for scatter dim {dim} as the source tensor: "
                    f"{list(tensor.shape)}"
                )
        sizes = [target.size(dim) for target in out]
        if sum(sizes) != tensor.size(dim):
            raise RuntimeError(
                f"Total size for output tensors along scatter dim {dim} does not match the source "
                f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size "
                f"{sum(sizes)}"
            )
        for position, stream in enumerate(streams or ()):
            _check_stream(stream, out[position].get_device(), position)
        for target, chunk in zip(out, tensor.split_with_sizes(sizes, dim), strict=True):
            target.copy_(chunk, non_blocking=True)  # takes nothing, on whatever stream
        return out

    def gather(self, tensors: Tensors, dim: int, destination: int | None) -> torch.Tensor:
        """Tensors of GPUs side by side in a new one."""
        shape = self._gathered_shape(tensors, dim)
        index = self._machine.thread.device if destination is None else destination
        formats = {_format_of(tensor) for tensor in tensors}
        result = torch.empty(
            shape,
            dtype=tensors[0].dtype,
            device="cpu" if index == _CPU_INDEX else self._machine.gpu(index).device,
            memory_format=formats.pop() if len(formats) == 1 else torch.contiguous_format,
        )
        return _fill(result, tensors, dim)

    def gather_out(self, tensors: Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
        """Tensors of GPUs side by side in an existing one."""
        shape = self._gathered_shape(tensors, dim)
        if list(out.shape) != shape:
            raise RuntimeError(
                f"Expected out tensor to have shape {shape}, but got {list(out.shape)}"
            )
        return _fill(out, tensors, dim)

    def _gathered_shape(self, tensors: Tensors, dim: int) -> list[int]:
        if not tensors:
            raise RuntimeError("Expected at least one tensor to gather from")
        shape = list(tensors[0].shape)
        for position, tensor in enumerate(tensors):
            self._check_is_on_gpu(tensor, "input", "tensor", position)
            if tensor.dim() != len(shape):
                raise RuntimeError(
                    "Expected all input tensors to have the same number of dimensions, but tensor "
                    f"at index {position} has {tensor.dim()} dimensions, (expected {len(shape)})"
                )
            shape[dim] = tensor.size(dim)
            if list(tensor.shape) != shape:
                raise RuntimeError(
                    f"Input tensor at index {position} has invalid shape {list(tensor.shape)}, "
                    f"but expected {shape}"
                )
        shape[dim] = sum(tensor.size(dim) for tensor in tensors)
        return shape

    def _check_is_on_gpu(self, tensor: torch.Tensor, kind: str, name: str, position: int) -> None:
        if self._machine.gpu_of(tensor) is None:
            raise RuntimeError(
                f"Expected all {kind} tensors to be CUDA tensors, but {name} at index {position} "
                f"has device '{tensor.device}'"
            )


def _without(shape: torch.Size, dim: int) -> list[int] | None:
    """The other lengths of a shape, None where it has no such dimension."""
    if not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    return [*shape[:dim], *shape[dim + 1 :]]


def _check_stream(stream: Any, device: int, position: int) -> None:
    if stream is not None and stream.device_index != device:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {position} (was "
            f"{stream.device_index}) to match the device supplied at that index (expected "
            f"{device})"
        )


def _sparse(chunk: Tensors, indices: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
    """Sparse tensors like those of a chunk, of indices and values that lie one after the other."""
    all_indices = _unflatten_dense_tensors(indices, [part._indices() for part in chunk])
    all_values = _unflatten_dense_tensors(values, [part._values() for part in chunk])
    return [
        torch.sparse_coo_tensor(
            index, value, like.shape, check_invariants=False, is_coalesced=like.is_coalesced()
        )
        for index, value, like in zip(all_indices, all_values, chunk, strict=True)
    ]


def _format_of(tensor: torch.Tensor) -> torch.memory_format:
    """Channels last, if the tensor is and is not contiguous too."""
    if (
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    ):
        return torch.channels_last
    return torch.contiguous_format


def _fill(result: torch.Tensor, tensors: Tensors, dim: int) -> torch.Tensor:
    sizes = [tensor.size(dim) for tensor in tensors]
    for part, tensor in zip(result.split_with_sizes(sizes, dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return result


def _chunks(tensors: Tensors, limit: int) -> Iterator[list[torch.Tensor]]:
    """Groups of tensors of one type, as ``torch/csrc/utils/tensor_flatten.cpp`` makes them."""
    # A group is full when another tensor as large as its last one would reach the limit.
    groups: dict[str, tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        kind = tensor.type()
        group, size = groups.pop(kind, ([], 0))
        group.append(tensor)
        nbytes = _nbytes(tensor)
        if size + 2 * nbytes >= limit:
            yield group
        else:
            groups[kind] = group, size + nbytes
    for group, _ in groups.values():
        yield group


def _nbytes(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        return sum(part.numel() * 8 for part in (tensor._indices(), tensor._values()))
    return tensor.numel() * tensor.element_size()


def _nccl_calls(machine: Machine) -> dict[str, Callable[..., None]]:
    @functools.cache
    def warn() -> None:
        warnings.warn("NCCL's own buffers are not counted", stacklevel=2)

    def collective(copies: Callable[..., Copies]) -> Callable[..., None]:
        """Computes on the CPU tensors, without an effect on the allocators."""

        def call(*args: Any) -> None:
            for tensors in args[:2]:
                if not isinstance(tensors, (int, torch.Tensor)):
                    _check_one_on_each_gpu(machine, tensors)
            warn()
            if machine.values is None:
                with torch.no_grad(), torch._C._DisableTorchDispatch():
                    for target, source in copies(*args):
                        target.data.copy_(source)  # NCCL writes unseen by autograd

        return call

    collectives = (reduce, all_reduce, broadcast, all_gather, reduce_scatter)
    return {f"_nccl_{copies.__name__}": collective(copies) for copies in collectives}


def _check_one_on_each_gpu(machine: Machine, tensors: Tensors) -> None:
    gpus = [machine.gpu_of(tensor) for tensor in tensors]
    if None in gpus or len(set(gpus)) < len(gpus):
        where = ", ".join("cpu" if gpu is None else str(gpu.device) for gpu in gpus)
        raise RuntimeError(f"NCCL needs each tensor on another GPU, not on {where}")


def reduce(inputs: Tensors, output: torch.Tensor, root: int, op: int, *_options: Any) -> Copies:
    """All inputs combined, in one output: that of the root."""
    return [(output, _combined(inputs, op))]


def all_reduce(inputs: Tensors, outputs: Tensors, op: int, *_options: Any) -> Copies:
    """All inputs combined, in every output."""
    total = _combined(inputs, op)
    return [(output, total) for output in outputs]


def broadcast(inputs: Tensors, root: int, *_options: Any) -> Copies:
    """One input in all others."""
    return [(copy, inputs[root]) for position, copy in enumerate(inputs) if position != root]


def all_gather(inputs: Tensors, outputs: Tensors, *_options: Any) -> Copies:
    """All inputs one after the other, in every output."""
    together = torch.cat([part.flatten() for part in inputs])
    return [(output, together.view_as(output)) for output in outputs]


def reduce_scatter(inputs: Tensors, outputs: Tensors, op: int, *_options: Any) -> Copies:
    """All inputs combined, a part in each output."""
    parts = _combined(inputs, op).flatten().chunk(len(outputs))
    return [(output, part.view_as(output)) for output, part in zip(outputs, parts, strict=True)]


def _combined(inputs: Tensors, op: int) -> torch.Tensor:
    total: torch.Tensor = functools.reduce(_COMBINE[op], inputs)
    return total / len(inputs) if op == _AVERAGE else total
