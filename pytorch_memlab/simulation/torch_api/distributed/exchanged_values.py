"""Values of the tensors that ranks exchange."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ....errors import UnsupportedCUDACallError
from ...machine import active
from ...machine.tensor_values import is_small

Tensors = list[torch.Tensor]


class _InFlight(threading.local):
    """Objects that a function of PyTorch is about to receive, as `objects` exchanges them."""

    objects: deque[bytes] | None = None  # None while no such function runs
    # what this rank would scatter as the root, while a DTensor is made; else None
    parts: Tensors | None = None

    def __init__(self) -> None:
        # The sizes of the objects, for each call of the function that receives some.
        self.sizes: deque[Sequence[int]] = deque()

    @contextmanager
    def receiving(self, sizes: Sequence[Sequence[int]], objects: Sequence[bytes]) -> Iterator[None]:
        self.objects, self.sizes = deque(objects), deque(sizes)
        try:
            yield
        finally:
            self.objects = None

    def fill(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Fill tensors that are received; False where no objects are."""
        if self.objects is None:
            return False
        if tensors[0].dtype == torch.int64 and self.sizes:
            numbers = torch.tensor(self.sizes.popleft())
            parts = numbers.split([tensor.numel() for tensor in tensors])
            copy_into(
                tensors,
                [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)],
            )
        return True


in_flight = _InFlight()


def scatter_own_parts(
    original: Callable[..., Any], output: Any, parts: Tensors, *args: Any, **options: Any
) -> Any:
    """``mesh_scatter`` of PyTorch: each rank has all parts, also one that is not the root."""
    in_flight.parts = parts
    try:
        return original(output, parts, *args, **options)
    finally:
        in_flight.parts = None


def copy_into(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None]) -> None:
    """Copy inputs to outputs; zeros for those that are unknown, or not alike."""
    with torch.no_grad():
        for output, tensor in zip(outputs, inputs, strict=True):
            if tensor is not None and output.shape == tensor.shape:
                unversioned(output).copy_(tensor)
            else:
                unversioned(output).zero_()


def unversioned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to write to unseen by autograd, which does not learn of what NCCL and Gloo write."""
    return tensor.data


def kind_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (*tensor.shape, tensor.dtype)


def is_sent(tensor: torch.Tensor) -> bool:
    """True if the values of a tensor go from rank to rank: in a dry run, of small ones only."""
    # Sender and receiver decide by what both know, the number of elements and the dtype.
    return not _is_dry() or is_small(tensor.numel(), tensor.dtype)


def _is_dry() -> bool:
    return active.values() is not None


def packed(tensor: torch.Tensor) -> bytes:
    """A tensor with its values, if it has any, as a message."""
    values = active.values()
    data = None
    if values is None or values.is_known(tensor):
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            unlabelled = tensor.detach().clone(memory_format=torch.contiguous_format)
            data = unlabelled.view(-1).view(torch.uint8).numpy().tobytes()
    return pickle.dumps((tensor.numel(), tensor.dtype, data))


def unpack(message: bytes, tensor: torch.Tensor, call: str) -> None:
    """Fill a tensor with the values of a message."""
    count, dtype, data = pickle.loads(message)  # noqa: S301 - a rank of the same program sent it
    if count != tensor.numel():
        raise ValueError(f"{call}: it sends {count} elements, and {tensor.numel()} are expected")
    if data is None:
        leave_unknown(tensor, call)
    elif data:
        received = torch.frombuffer(bytearray(data), dtype=dtype).view(tensor.shape)
        copy_into([tensor], [received])


def leave_unknown(tensor: torch.Tensor, call: str) -> None:
    """Take the values from a tensor that another rank fills; refused where tensors have values."""
    values = active.values()
    if values is None:
        raise UnsupportedCUDACallError(
            f"{call}: what another rank sends is not known, because this rank is simulated alone;"
            " simulate the ranks together (pytorch-memlab fit --ranks all, or pytorch-memlab run"
            " -- torchrun), or shapes only (--dry-run)"
        )
    values.forget_values(tensor)
