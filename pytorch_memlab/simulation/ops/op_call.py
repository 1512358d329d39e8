"""One op on a simulated GPU, as its memory function sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ..hardware.gpu import GPU


class MemoryContext(Protocol):
    """The state of the simulation that one op may change or ask for."""

    @property
    def model(self) -> GPU:
        """The hardware that runs the op."""

    def allocate(self, nbytes: int, *, is_estimate: bool) -> Any:
        """Allocate memory that is no output, on the current stream."""

    def release(self, allocation: Any) -> None:
        """Free what ``allocate`` returned."""

    def allocate_output(self, tensor: torch.Tensor, *, is_estimate: bool) -> None:
        """Allocate the memory of an output, unless it has some."""

    def allocate_outputs(self) -> None:
        """Allocate the memory of every output that has none."""

    def ensure_cublas_workspace(self) -> int:
        """Allocate the cuBLAS workspace of this thread and stream; returns estimated bytes."""

    def ensure_cublaslt_workspace(self, size: int) -> int:
        """Allocate the cuBLASLt workspace of this thread and stream; returns estimated bytes."""

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        """True if no simulated GPU holds a tensor."""


class OpCall:
    """A call of an op: its arguments, its results, and the memory that its kernels allocate.

    A memory function runs through the kernel: temporaries, ``alloc_outputs()``, temporaries. The
    outputs that it does not allocate are allocated after it.

    Args:
        context: the state of the simulation.
        args: of the op.
        kwargs: of the op.
        result: what the op returns.
        is_confirmed: a recording confirms the temporaries.

    Attributes:
        estimated: bytes of temporaries so far that no recording confirms.
        unknown_workspace: memory whose size only a library knows, such as ``cuDNN workspaces``;
            empty if there is none.
    """

    __slots__ = (
        "_context",
        "_temporaries",
        "args",
        "estimated",
        "is_confirmed",
        "kwargs",
        "model",
        "result",
        "unknown_workspace",
    )

    def __init__(
        self,
        context: MemoryContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        *,
        is_confirmed: bool = False,
    ) -> None:
        self._context = context
        self.model = context.model
        self.args = args
        self.kwargs = kwargs
        self.result = result
        self.is_confirmed = is_confirmed
        self.estimated = 0
        self.unknown_workspace = ""
        self._temporaries: list[Any] = []

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the op, given by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        """True if no simulated GPU holds a tensor."""
        return self._context.is_on_cpu(tensor)

    def alloc_temp(self, nbytes: int) -> Any:
        """Allocate memory until the op ends; the last allocated is freed first, as in C++.

        Raises:
            torch.OutOfMemoryError: the GPU is full.
        """
        is_estimate = not self.is_confirmed
        allocation = self._context.allocate(nbytes, is_estimate=is_estimate)
        self._temporaries.append(allocation)
        if is_estimate:
            self.estimated += nbytes
        return allocation

    def alloc_copy(self, tensor: torch.Tensor) -> None:
        """Allocate a contiguous copy of a tensor until the op ends."""
        self.alloc_temp(tensor.numel() * tensor.element_size())

    def alloc_contiguous(self, *tensors: torch.Tensor | None) -> None:
        """Allocate ``contiguous()`` of tensors until the op ends, where it makes a copy."""
        for tensor in tensors:
            if tensor is not None and not tensor.is_contiguous():
                self.alloc_copy(tensor)

    def alloc_outputs(self, *tensors: torch.Tensor | None, is_estimate: bool = False) -> None:
        """Allocate the given outputs, or all of them if none is given.

        Args:
            tensors: of the op's result; None has no memory.
            is_estimate: no recording confirms their sizes.
        """
        if not tensors:
            self._context.allocate_outputs()
        for tensor in tensors:
            if tensor is not None:
                self._context.allocate_output(tensor, is_estimate=is_estimate)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free at its end what was allocated in it, as a scope of C++ does."""
        kept = len(self._temporaries)
        yield
        while len(self._temporaries) > kept:
            self._context.release(self._temporaries.pop())

    def alloc_and_free(self, *sizes: int) -> None:
        """Allocate memory and free it at once, one size after another."""
        for nbytes in sizes:
            with self.scope():
                self.alloc_temp(nbytes)

    def free_temp(self, allocation: Any) -> None:
        """Free what ``alloc_temp`` returned, before the op ends."""
        self._temporaries.remove(allocation)
        self._context.release(allocation)

    def end(self) -> None:
        """Free all temporaries."""
        while self._temporaries:
            self._context.release(self._temporaries.pop())

    def ensure_cublas_workspace(self) -> None:
        """Allocate the cuBLAS workspace of this thread and stream, if it does not exist yet."""
        self.estimated += self._context.ensure_cublas_workspace()

    def ensure_cublaslt_workspace(self, size: int) -> None:
        """Allocate the cuBLASLt workspace of this thread and stream, if it does not exist yet."""
        self.estimated += self._context.ensure_cublaslt_workspace(size)
