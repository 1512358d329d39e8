"""One op on a simulated GPU, as the table's entries see it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from ..machine import Machine
    from ..simulated_gpu import Placement, SimulatedGPU


class Launch:
    """An op that runs, and what its kernels take besides its results.

    Args:
        machine: the simulated machine.
        gpu: that runs the op.
        args: of the op.
        kwargs: of the op.
        result: what the op returns, None before it has run.

    Attributes:
        taken: bytes borrowed so far, also of what was given back.
        takes_more: it takes memory of which nobody but a library knows how much.
        label: says that a tensor lives on the GPU; set when the result is known.
    """

    __slots__ = (
        "_borrowed",
        "_stream",
        "args",
        "gpu",
        "kwargs",
        "label",
        "machine",
        "result",
        "taken",
        "takes_more",
    )

    def __init__(
        self,
        machine: Machine,
        gpu: SimulatedGPU,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any = None,
    ) -> None:
        self.machine = machine
        self.gpu = gpu
        self.args = args
        self.kwargs = kwargs
        self.result = result
        self.taken = 0
        self.takes_more = False
        self.label: Callable[[torch.Tensor], None] | None = None
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
        placement = self.gpu.allocate(nbytes, self._stream)
        self._borrowed.append(placement)
        self.taken += nbytes
        return placement

    def copy(self, tensor: torch.Tensor) -> None:
        """Take the memory of a contiguous copy of a tensor until the op ends."""
        self.borrow(tensor.numel() * tensor.element_size())

    def made(self, *tensors: torch.Tensor | None) -> None:
        """Take the memory of results now, in an entry's ``make``.

        Args:
            tensors: of the op's result; those that are None take none.
        """
        for tensor in tensors:
            if tensor is not None and self.label is not None:
                self.label(tensor)

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
        self.machine.workspaces.need(self.gpu, self._stream)
