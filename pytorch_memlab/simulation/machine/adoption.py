"""The tensors of a simulation that has ended, on the same GPUs of another one."""

from __future__ import annotations

from collections.abc import Collection

from .machine import Machine


def adopt(
    machine: Machine,  # a fresh one
    former: Machine,  # of a simulation that has ended
    counted: Collection[int],  # ``_cdata`` of the storages that take memory of the machine's GPUs
) -> None:
    """Let a machine have the tensors of a former one, which has none after that."""
    # The storages that are not counted are there as well, so that each tensor is where it was, and
    # take no memory.
    for storage, allocation in former.allocations.living_storages():
        gpu = machine.gpu(allocation.gpu.index)
        if allocation.address and storage._cdata in counted:
            machine.put(storage, gpu)
        else:
            machine.label(storage, gpu, allocation.nbytes)
    for pinned, _size in former.pinned.living_storages():
        machine.pin(pinned)
    if machine.values is not None and former.values is not None:
        for storage, holds_zeros in former.values.absent.living_storages():
            machine.values.add(storage, holds_zeros)
    machine.thread.device = former.thread.device
    former.allocations.clear()
    former.pinned.clear()
