"""The tensors of a dry run that have no values; see Note [What a dry run assumes]."""

from __future__ import annotations

import torch

from ..._common.storages import StorageTable, storages_of
from .data_dependent_reads import DataDependentReads
from .uncommitted_memory import uncommitted

_MOST_INTEGERS = 65_536
_MOST_OTHERS = 4_096
_INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_untyped_storage = torch._C.TensorBase.untyped_storage


class TensorValues:
    """The storages of one dry run that have no values.

    Attributes:
        absent: those storages, True where they hold zeros that stand for values.
        reads: where the program read values that are not there.
        answers: the next truth values that are read, one after the other; then they are false.
    """

    def __init__(self) -> None:
        self.absent: StorageTable[bool] = StorageTable(_forget)
        self.reads = DataDependentReads()
        self.answers: list[bool] = []

    def is_known(self, tensor: torch.Tensor) -> bool:
        """True if a strided tensor has values."""
        return _untyped_storage(tensor)._cdata not in self.absent.known

    def is_readable(self, tensor: torch.Tensor) -> bool:
        """True if a strided tensor has values, or zeros in their place."""
        return self.absent.known.get(_untyped_storage(tensor)._cdata, True)

    def lacks_values(self, tensor: torch.Tensor) -> bool:
        """True if a tensor of any layout has no values, or not all of them."""
        with torch._C.DisableTorchFunction():
            storages = storages_of(tensor)
        return any(map(self.storage_lacks_values, storages))

    def storage_lacks_values(self, storage: torch.UntypedStorage) -> bool:
        """True if a storage has no values."""
        return storage._cdata in self.absent.known

    def forget_values(self, tensor: torch.Tensor) -> None:
        """Take the values from a tensor's storage: something unknown was written to it."""
        self.add(_untyped_storage(tensor), True)

    def add(self, storage: torch.UntypedStorage, holds_zeros: bool) -> None:
        """Note that a storage has no values, if it is not noted yet."""
        if storage._cdata not in self.absent.known:
            self.absent.add(storage, holds_zeros)

    def make(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor without values."""
        stride = torch.empty(size, device="meta").stride()
        return self.make_strided(size, stride, dtype)

    def make_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor without values."""
        tensor = uncommitted(size, stride, dtype)
        small = is_small(tensor.numel(), dtype)
        if small:
            tensor.zero_()
        self.absent.add(_untyped_storage(tensor), small)
        return tensor

    def make_bytes(self, count: int) -> torch.Tensor:
        """Bytes without values, whatever modes are on."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return self.make_strided((count,), (1,), torch.uint8)


def is_small(numel: int, dtype: torch.dtype) -> bool:
    """True if tensors of so many elements are computed with while their values are known."""
    return numel <= _MOST_OTHERS or (numel <= _MOST_INTEGERS and dtype in _INTEGERS)


def _forget(_holds_zeros: bool) -> None:
    """Nothing else is kept for a storage without values."""
