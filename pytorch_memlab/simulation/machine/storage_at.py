"""The storage that a program means by an address.

A program reads ``data_ptr()``, which is an address on the host, and ``memory_snapshot()``, which
has addresses on the simulated GPU.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .machine import Machine
    from .simulated_gpu import Placement


def address_on_gpu(machine: Machine, address: int) -> int:
    """Where a storage lies on its simulated GPU; the address itself if no storage has it.

    Args:
        machine: the simulated GPUs.
        address: on the host or on a simulated GPU.
    """
    placement = placement_at(machine, address)
    return address if placement is None else placement.address


def placement_at(machine: Machine, address: int) -> Placement | None:
    """What is known of the living storage that begins at an address, None if there is none.

    Args:
        machine: the simulated GPUs.
        address: on the host or on a simulated GPU.
    """
    known = machine.placements.known
    for placement in known.values():
        if placement.address == address:
            return placement
    number = _number_at(address)
    return None if number is None else known.get(number)


def _number_at(address: int) -> int | None:
    """``_cdata`` of the storage at an address on the host."""
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
