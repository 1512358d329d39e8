"""Methods of storages that name a device: what saving, loading and copying of tensors uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..dispatch.transfers import place_of_device
from ..machine.machine import HOST

if TYPE_CHECKING:
    from ..._common.patches import Patches
    from ..machine.machine import Machine
    from ..machine.tensor_values import TensorValues

_Storage = torch.UntypedStorage


def install(machine: Machine, patches: Patches) -> None:
    """Replace methods of ``torch.UntypedStorage`` until the patches are undone.

    Args:
        machine: the simulated machine.
        patches: who puts them back.
    """
    allocations = machine.allocations
    values = machine.values
    host_device = vars(torch._C.StorageBase)["device"].__get__
    host_resize = _Storage.resize_

    def device(storage: torch.UntypedStorage) -> torch.device:
        allocation = allocations.known.get(storage._cdata)
        if allocation is None:
            host: torch.device = host_device(storage)
            return host
        return allocation.gpu.device

    def move(storage: torch.UntypedStorage, place: int) -> torch.UntypedStorage:
        if _place(storage) == place:
            return storage
        return copy(storage, place)

    def copy(storage: torch.UntypedStorage, place: int) -> torch.UntypedStorage:
        if values is not None and values.storage_lacks_values(storage):
            new = values.make_bytes(storage.nbytes()).untyped_storage()
        else:
            new = _Storage(storage.nbytes())
            # C++ copies through tensors of its own, which are none of the program's.
            with torch._C._DisableTorchDispatch():
                new.copy_(storage, False)
        if place != HOST:
            machine.put(new, place)
        return new

    def _place(storage: torch.UntypedStorage) -> int:
        allocation = allocations.known.get(storage._cdata)
        return HOST if allocation is None else allocation.gpu.index

    host_new = _Storage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> torch.UntypedStorage:
        place = HOST if device is None else place_of_device(machine, device)
        if place == HOST:
            options = kwargs if device is None else {**kwargs, "device": device}
            host: torch.UntypedStorage = host_new(cls, *args, **options)
            return host
        storage: torch.UntypedStorage = host_new(cls, *args, **kwargs)
        machine.put(storage, place)
        return storage

    def to(
        self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        return move(self, place_of_device(machine, device))

    def cuda(
        self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        return move(self, place_of_device(machine, device))

    def cpu(self: torch.UntypedStorage) -> torch.UntypedStorage:
        return move(self, HOST)

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        return copy(self, _place(self))

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        result = host_resize(self, size)
        if self._cdata in allocations.known:
            machine.resized(self)
        return result

    if values is not None:
        patches.set(_Storage, "copy_", _copying(values, _Storage.copy_))
    patches.set(_Storage, "__new__", staticmethod(new))
    patches.set(_Storage, "device", property(device))
    patches.set(_Storage, "is_cuda", property(lambda storage: _place(storage) != HOST))
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
