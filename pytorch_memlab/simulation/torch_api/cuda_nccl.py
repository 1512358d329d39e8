"""``torch.cuda.nccl``: one process that sends between its own GPUs.

Nothing is taken from PyTorch's allocator; NCCL's own buffers come from the driver and are not
counted, and a warning says so.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine

Tensors = Sequence[torch.Tensor]

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
    """Answer what ``torch.cuda.nccl`` asks of C++, until undone."""
    for name, call in _Collectives(machine).calls().items():
        patches.set(torch._C, name, call)


class _Collectives:
    """The collectives, bound to one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._has_warned = False

    def calls(self) -> dict[str, Callable[..., None]]:
        return {
            "_nccl_reduce": self.reduce,
            "_nccl_all_reduce": self.all_reduce,
            "_nccl_broadcast": self.broadcast,
            "_nccl_all_gather": self.all_gather,
            "_nccl_reduce_scatter": self.reduce_scatter,
        }

    def reduce(
        self, inputs: Tensors, output: torch.Tensor, root: int, op: int, *_options: Any
    ) -> None:
        """All inputs combined, in one output."""
        del root  # the output is there
        self._check(inputs)
        self._run(lambda: output.copy_(_combined(inputs, op)))

    def all_reduce(self, inputs: Tensors, outputs: Tensors, op: int, *_options: Any) -> None:
        """All inputs combined, in every output."""
        self._check(inputs)
        self._check(outputs)

        def run() -> None:
            total = _combined(inputs, op)
            for output in outputs:
                output.copy_(total)

        self._run(run)

    def broadcast(self, inputs: Tensors, root: int, *_options: Any) -> None:
        """One input in all others."""
        self._check(inputs)

        def run() -> None:
            for position, one in enumerate(inputs):
                if position != root:
                    one.copy_(inputs[root])

        self._run(run)

    def all_gather(self, inputs: Tensors, outputs: Tensors, *_options: Any) -> None:
        """All inputs one after the other, in every output."""
        self._check(inputs)
        self._check(outputs)

        def run() -> None:
            together = torch.cat([one.flatten() for one in inputs])
            for output in outputs:
                output.copy_(together.view_as(output))

        self._run(run)

    def reduce_scatter(self, inputs: Tensors, outputs: Tensors, op: int, *_options: Any) -> None:
        """All inputs combined, a part in each output."""
        self._check(inputs)
        self._check(outputs)

        def run() -> None:
            parts = _combined(inputs, op).flatten().chunk(len(outputs))
            for output, part in zip(outputs, parts, strict=True):
                output.copy_(part.view_as(output))

        self._run(run)

    def _run(self, work: Callable[[], Any]) -> None:
        """Compute on the CPU tensors, without an effect on the allocators."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn("NCCL's own buffers are not counted", stacklevel=5)
        if self._machine.values is None:
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                work()

    def _check(self, tensors: Tensors) -> None:
        gpus = [self._machine.gpu_of(tensor) for tensor in tensors]
        if None in gpus or len(set(gpus)) < len(gpus):
            where = ", ".join("cpu" if gpu is None else str(gpu.device) for gpu in gpus)
            raise RuntimeError(f"NCCL needs each tensor on another GPU, not on {where}")


def _combined(inputs: Tensors, op: int) -> torch.Tensor:
    total: torch.Tensor = functools.reduce(_COMBINE[op], inputs)
    return total / len(inputs) if op == _AVERAGE else total
