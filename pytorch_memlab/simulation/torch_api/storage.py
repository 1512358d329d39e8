"""Methods of storages that name a device: what saving, loading and copying of tensors uses."""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import TensorValues

_Storage = torch.UntypedStorage


def install(machine: Machine, patches: Patches) -> None:
    """Replace methods of ``torch.UntypedStorage`` until undone."""
    allocations = machine.allocations
    values = machine.values
    cpu_device = vars(torch._C.StorageBase)["device"].__get__
    resize = _Storage.resize_

    def device(storage: torch.UntypedStorage) -> torch.device:
        allocation = allocations.known.get(storage._cdata)
        if allocation is None:
            device: torch.device = cpu_device(storage)
            return device
        return allocation.gpu.device

    def move(storage: torch.UntypedStorage, gpu: SimulatedGPU | None) -> torch.UntypedStorage:
        return storage if gpu_of(storage) is gpu else copy(storage, gpu)

    def copy(storage: torch.UntypedStorage, gpu: SimulatedGPU | None) -> torch.UntypedStorage:
        if values is not None and values.storage_lacks_values(storage):
            new = values.make_bytes(storage.nbytes()).untyped_storage()
        else:
            new = _Storage(storage.nbytes())
            # C++ copies through tensors that the program does not see.
            with torch._C._DisableTorchDispatch():
                new.copy_(storage, False)
        if gpu is not None:
            machine.put(new, gpu)
        return new

    def gpu_of(storage: torch.UntypedStorage) -> SimulatedGPU | None:
        allocation = allocations.known.get(storage._cdata)
        return None if allocation is None else allocation.gpu

    new_on_cpu = _Storage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> torch.UntypedStorage:
        gpu = None if device is None else machine.find_gpu(device)
        if gpu is None:
            options = kwargs if device is None else {**kwargs, "device": device}
            made: torch.UntypedStorage = new_on_cpu(cls, *args, **options)
            return made
        storage: torch.UntypedStorage = new_on_cpu(cls, *args, **kwargs)
        machine.put(storage, gpu)
        return storage

    def to(
        self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        return move(self, machine.find_gpu(device))

    def cuda(
        self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        return move(self, machine.find_gpu(device))

    def cpu(self: torch.UntypedStorage) -> torch.UntypedStorage:
        return move(self, None)

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        return copy(self, gpu_of(self))

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if self._cdata in allocations.known:
            machine.resized(self)
        return result

    if values is not None:
        patches.set(_Storage, "copy_", _copying(values, _Storage.copy_))
    patches.set(_Storage, "__new__", staticmethod(new))
    patches.set(_Storage, "device", property(device))
    patches.set(_Storage, "is_cuda", property(lambda storage: gpu_of(storage) is not None))
    for method in (to, cuda, cpu, clone, resize_):
        patches.set(_Storage, method.__name__, method)


def _copying(values: TensorValues, original: Any) -> Any:
    absent = values.absent

    def copy_(self: torch.UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> Any:
        if absent.known.get(source._cdata, True):
            original(self, source, *args, **kwargs)
        if source._cdata in absent.known:
            values.add(self, absent.known[source._cdata])
        return self

    return copy_
