"""The storage that a program means by an address.

A program reads ``data_ptr()``, which is an address of the CPU, and ``memory_snapshot()``, which
has addresses on the simulated GPU.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .machine import Machine
    from .simulated_gpu import Allocation


def address_on_gpu(machine: Machine, address: int) -> int:
    """The address of a storage on its simulated GPU; the address itself if no storage has it."""
    allocation = allocation_at(machine, address)
    return address if allocation is None else allocation.address


def allocation_at(machine: Machine, address: int) -> Allocation | None:
    """The allocation of the storage that begins at an address, None if there is none."""
    known = machine.allocations.known
    for allocation in known.values():
        if allocation.address == address:
            return allocation
    number = _number_at(address)
    return None if number is None else known.get(number)


def _number_at(address: int) -> int | None:
    """``_cdata`` of the storage at an address of the CPU."""
    with torch._C.DisableTorchFunction():
        for each in gc.get_objects():
            if issubclass(type(each), torch.Tensor):
                try:
                    storage = each.untyped_storage()
                    if storage.data_ptr() == address:
                        return int(storage._cdata)
                except Exception:  # a tensor without a storage
                    continue
    return None
