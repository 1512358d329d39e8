"""One op on a simulated GPU, as its memory function sees it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from ...hardware.gpu import GPU
from ...machine.machine import Machine
from ...machine.op_arguments import Args, Kwargs, tensors_in
from ...machine.simulated_gpu import Allocation, SimulatedGPU

INDEX: Final = 8
FLOAT: Final = 4
"""Bytes of an index, and of a number in single precision."""

CUDNN_WORKSPACES: Final = "cuDNN workspaces"
"""Each plan of cuDNN has its own, whose size only cuDNN tells."""


_INTEGERS: Final = {
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
}
"""PyTorch's names of types of numbers, in errors."""


class OpCall(ABC):
    """A call of an op: its arguments, its results, and the memory that its kernels allocate."""

    # A memory function runs through the kernel: temporaries, ``alloc_outputs()``, temporaries. The
    # outputs that it does not allocate are allocated after it.

    machine: Machine  # the state of the simulation
    op: Any  # a ``torch._ops.OpOverload``
    args: Args
    kwargs: Kwargs
    gpu: SimulatedGPU  # that runs the op
    stream: int  # that it runs on
    result: Any  # what the op returns
    is_confirmed: bool  # whether a recording confirms the temporaries
    # What few calls change is an attribute of the class: every op makes one of these.
    has_outputs = False  # whether every output has its memory
    estimated = 0  # bytes of temporaries so far that no recording confirms
    unknown_workspace = ""  # memory whose size only a library knows, such as ``cuDNN workspaces``
    workspace_bound: int | None = 0  # bytes that it has at most; None if no bound is known
    workspace_gives_way = False  # whether less does where there is no room for so much
    _temporaries: list[Allocation]

    @abstractmethod
    def allocate_output(self, tensor: torch.Tensor, *, is_estimate: bool = False) -> None:
        """Allocate the memory of an output on the GPU where it lives, if it has none."""

    @abstractmethod
    def allocate_outputs(self) -> None:
        """Allocate the memory of every output that has none."""

    @property
    def model(self) -> GPU:
        """The hardware that runs the op."""
        return self.gpu.model

    def argument(self, name: str) -> Any:
        """An argument by its name, its default if it was not given; None if the op has none."""
        if name in self.kwargs:
            return self.kwargs[name]
        names = _defaults(self.op)
        if name not in names:
            return None
        position = names[name][0]
        return self.args[position] if position < len(self.args) else names[name][1]

    def refuse_integers(self, kernel: str) -> None:
        """Fail as a kernel of CUDA does that takes no integers, though the CPU's takes them."""
        # The error names ``kernel``. A call with an empty tensor does not fail.
        name = _INTEGERS.get(self.args[0].dtype)
        if name is not None and all(tensor.numel() for tensor in tensors_in(self.args, {})):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{name}'")

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        """True if no simulated GPU holds a tensor."""
        return self.machine.allocations.find(tensor) is None

    def alloc_temp(self, nbytes: int) -> Allocation:
        """Allocate memory until the op ends; the last allocated is freed first, as in C++."""
        # Raises torch.OutOfMemoryError if the GPU is full.
        is_estimate = not self.is_confirmed
        allocation = self.gpu.allocate(nbytes, self.stream, is_estimate=is_estimate)
        self._temporaries.append(allocation)
        if is_estimate:
            self.estimated += nbytes
        return allocation

    def alloc_temps(self, sizes: Sequence[int]) -> list[Allocation]:
        """Allocate as ``alloc_temp`` does, one after another."""
        return [self.alloc_temp(nbytes) for nbytes in sizes]

    def leave_out(
        self,
        unknown: str,  # what it is, such as ``cuDNN workspaces``
        # the most bytes that it can be, on top of all that is in use now; None if no bound is known
        at_most: int | None = None,
        *,
        gives_way: bool = False,  # less does where there is no room for so much
    ) -> None:
        """A library takes memory here whose size only it knows, and none is counted."""
        self.unknown_workspace = unknown
        self.workspace_gives_way = gives_way
        if at_most is None:
            self.workspace_bound = None
        else:
            self.gpu.note_uncounted(at_most)
            if self.workspace_bound is not None:
                self.workspace_bound = max(self.workspace_bound, at_most)

    def alloc_copy(self, tensor: torch.Tensor) -> Allocation:
        """Allocate a contiguous copy of a tensor until the op ends."""
        return self.alloc_temp(tensor.nbytes)

    def alloc_contiguous(
        self,
        *tensors: torch.Tensor | None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """Allocate ``contiguous()`` of tensors until the op ends, where it makes a copy."""
        for tensor in tensors:
            if tensor is not None and not tensor.is_contiguous(memory_format=memory_format):
                self.alloc_copy(tensor)

    def alloc_outputs(
        self,
        *tensors: torch.Tensor | None,  # of the op's result; None has no memory
        is_estimate: bool = False,  # no recording confirms their sizes
    ) -> None:
        """Allocate the given outputs, or all of them if none is given."""
        if not tensors and not self.has_outputs:
            self.has_outputs = True
            self.allocate_outputs()
        for tensor in tensors:
            if tensor is not None:
                self.allocate_output(tensor, is_estimate=is_estimate)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free at its end what was allocated in it, as a scope of C++ does."""
        kept = len(self._temporaries)
        yield
        self.free_temps(kept)

    def alloc_and_free(self, *sizes: int) -> None:
        """Allocate memory and free it at once, one size after another."""
        for nbytes in sizes:
            with self.scope():
                self.alloc_temp(nbytes)

    def free_temp(self, allocation: Allocation) -> None:
        """Free what ``alloc_temp`` returned, before the op ends."""
        self._temporaries.remove(allocation)
        self.gpu.release(allocation)

    def free_temps(self, kept: int = 0) -> None:
        """Free the temporaries but for the first ones, the last allocated first."""
        while len(self._temporaries) > kept:
            self.gpu.release(self._temporaries.pop())

    def ensure_cublas_workspace(self) -> None:
        """Allocate the cuBLAS workspace: that of this thread and stream once, or one each time."""
        self.estimated += self.machine.workspaces.need(self.gpu, self.stream)

    def ensure_cublaslt_workspace(self, size: int) -> None:
        """Allocate the cuBLASLt workspace of this thread and stream, if it does not exist yet."""
        workspaces = self.machine.workspaces
        self.estimated += workspaces.need_cublaslt(self.gpu, self.stream, size)


def contiguous(*positions: int, before_outputs: bool = False) -> Callable[[OpCall], None]:
    """The memory of an op whose kernels read contiguous copies of some arguments."""

    def memory(call: OpCall) -> None:
        if not before_outputs:
            call.alloc_outputs()
        call.alloc_contiguous(*(call.args[position] for position in positions))

    return memory


def named_arguments(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, by the names of the schema of an op."""
    schema = _defaults(op)
    defaults = {name: default for name, (_, default) in schema.items()}
    return defaults | dict(zip(schema, args, strict=False)) | kwargs


@functools.cache
def _defaults(op: Any) -> dict[str, tuple[int, Any]]:
    """By name, position and default of each argument of a schema."""
    arguments = enumerate(op._schema.arguments)
    return {argument.name: (position, argument.default_value) for position, argument in arguments}
