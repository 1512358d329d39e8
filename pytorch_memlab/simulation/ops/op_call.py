"""One op on a simulated GPU, as the table's entries see it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from ..machine.machine import Machine
    from ..machine.simulated_gpu import Placement, SimulatedGPU


class Launch:
    """An op that runs, and what its kernels take besides its results.

    Args:
        machine: the simulated machine.
        gpu: that runs the op.
        args: of the op.
        kwargs: of the op.
        result: what the op returns, None before it has run.
        is_confirmed: a recording confirms what its kernels take.

    Attributes:
        estimated: bytes taken so far besides the results that no recording confirms, also of what
            was given back.
        unknown: what the memory is of which only a library knows how much the op takes, such as
            ``cuDNN workspaces``; empty if there is none.
        label: says that a tensor lives on the GPU; set when the result is known.
    """

    __slots__ = (
        "_borrowed",
        "_stream",
        "args",
        "estimated",
        "gpu",
        "is_confirmed",
        "kwargs",
        "label",
        "machine",
        "result",
        "unknown",
    )

    def __init__(
        self,
        machine: Machine,
        gpu: SimulatedGPU,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any = None,
        *,
        is_confirmed: bool = False,
    ) -> None:
        self.machine = machine
        self.gpu = gpu
        self.args = args
        self.kwargs = kwargs
        self.result = result
        self.is_confirmed = is_confirmed
        self.estimated = 0
        self.unknown = ""
        self.label: Callable[..., None] | None = None
        self._stream = machine.current_stream(gpu.index)
        self._borrowed: list[Placement] = []

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the op, however it was given.

        Args:
            position: among the positional ones.
            name: in the op's schema.
            default: of the schema.

        Returns:
            its value.
        """
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def borrow(self, nbytes: int) -> Placement:
        """Take memory until the op ends; the last taken goes back first, as C++ scopes end.

        Args:
            nbytes: bytes requested.

        Returns:
            what was taken, to give it back before the op ends.

        Raises:
            torch.OutOfMemoryError: the GPU is full.
        """
        estimates = not self.is_confirmed
        placement = self.gpu.allocate(nbytes, self._stream, is_estimate=estimates)
        self._borrowed.append(placement)
        if estimates:
            self.estimated += nbytes
        return placement

    def copy(self, tensor: torch.Tensor) -> None:
        """Take the memory of a contiguous copy of a tensor until the op ends."""
        self.borrow(tensor.numel() * tensor.element_size())

    def made(self, *tensors: torch.Tensor | None, is_estimate: bool = False) -> None:
        """Take the memory of results now, in an entry's ``make``.

        Args:
            tensors: of the op's result; those that are None take none.
            is_estimate: no recording confirms their sizes.
        """
        for tensor in tensors:
            if tensor is not None and self.label is not None:
                self.label(tensor, is_estimate=is_estimate)

    def contiguous(self, *tensors: torch.Tensor | None) -> None:
        """Take the memory of ``contiguous()`` of tensors until the op ends.

        Args:
            tensors: those that are None or already contiguous take none.
        """
        for tensor in tensors:
            if tensor is not None and not tensor.is_contiguous():
                self.copy(tensor)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Give back at its end what was borrowed in it, as a scope of C++ does."""
        kept = len(self._borrowed)
        yield
        while len(self._borrowed) > kept:
            self.gpu.release(self._borrowed.pop())

    def pass_by(self, *sizes: int) -> None:
        """Take memory and give it back at once, one after another.

        Args:
            sizes: bytes requested.
        """
        for nbytes in sizes:
            with self.scope():
                self.borrow(nbytes)

    def give_back(self, placement: Placement) -> None:
        """Give back what was borrowed, before the op ends."""
        self._borrowed.remove(placement)
        self.gpu.release(placement)

    def end(self) -> None:
        """Give everything back that was borrowed."""
        while self._borrowed:
            self.gpu.release(self._borrowed.pop())

    def need_cublas(self) -> None:
        """Take the cuBLAS workspace of this thread and stream, if it does not exist yet."""
        self.estimated += self.machine.workspaces.need(self.gpu, self._stream)

    def need_cublaslt(self, size: int) -> None:
        """Take cuBLASLt's own workspace of this thread and stream, if it does not exist yet.

        Args:
            size: in bytes.
        """
        self.estimated += self.machine.workspaces.need_cublaslt(self.gpu, self._stream, size)
