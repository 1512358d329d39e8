"""Process groups with NCCL or Gloo: what each takes from the allocator, beside its collectives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...machine import active
from .exchanged_values import Tensors
from .one_rank import SimulatedGroup


class SimulatedNCCL(SimulatedGroup):
    """A group with NCCL, as torch makes it by default until 2.14 (``ProcessGroupNCCL.cpp``)."""

    # A list of equal tensors goes through one tensor of all of them, and a barrier reduces a float.

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """All ranks get all inputs."""
        flat = _flattened(outputs)
        work = super().allgather(outputs, inputs, opts)
        del flat
        return work

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        """Each rank gets its part of the sum, or of what ``opts`` wants."""
        flat = _flattened(inputs)
        work = super().reduce_scatter(outputs, inputs, opts)
        del flat
        return work

    def barrier(self, opts: Any = None) -> Any:
        """All ranks are here."""
        _take_float(self.bound_device_id)()
        return super().barrier(opts)


class SimulatedNCCL2(SimulatedGroup):
    """A group with NCCL on one GPU, as torch 2.15 makes it by default."""

    # Its first barrier takes a float, which it keeps for the others
    # (``nccl2/ProcessGroupNCCL.cpp``).

    _free_float: Callable[[], object] | None = None

    def barrier(self, opts: Any = None) -> Any:
        """All ranks are here."""
        if self._free_float is None:
            self._free_float = weakref.finalize(self, _take_float(self.bound_device_id))
        return super().barrier(opts)

    def abort(self, *args: Any, **options: Any) -> None:
        """The communicator ends, and with it what it keeps."""
        if self._free_float is not None:
            self._free_float()
        super().abort(*args, **options)


class SimulatedGloo(SimulatedGroup):
    """A group with Gloo, or with Gloo for the CPU and NCCL for GPUs."""


def _take_float(device: torch.device | None) -> Callable[[], None]:
    """Take a float from the allocator of a GPU, by default the current one; what frees it."""
    machine = active.machine
    gpu = None if machine is None else machine.find_gpu(device)
    if machine is None or gpu is None:
        return lambda: None
    allocation = gpu.allocate(4, machine.current_stream(gpu.index))
    return functools.partial(gpu.release, allocation)


def _flattened(lists: list[Tensors]) -> Tensors:
    """A new tensor for each list of equally shaped tensors."""
    return [
        tensor_list[0].new_empty((len(tensor_list), *tensor_list[0].shape))
        for tensor_list in lists
        if len({tensor.shape for tensor in tensor_list}) == 1
    ]
