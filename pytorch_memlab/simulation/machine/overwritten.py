"""Storages whose memory has become that of something else: what uses their data fails.

Trees of CUDA graphs mark the outputs of a run so, before the next run writes over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..._common.torch.storages import StorageTable


@dataclass(frozen=True, slots=True)
class _Mark:
    message: str
    is_taken: bool  # PyTorch took the storage away from its tensor, which gives no views either


class Overwritten:
    """The storages that are marked, for as long as they live; false while there are none."""

    def __init__(self) -> None:
        self._marks: StorageTable[_Mark] = StorageTable(_forget)

    def __bool__(self) -> bool:
        return bool(self._marks.known)

    def mark(
        self,
        storage: torch.UntypedStorage,  # whose data is gone
        message: str,  # of the error
        *,
        is_taken: bool,  # a question for the storage itself fails too, as views need it
    ) -> None:
        """Let what uses the data of a storage fail with a message."""
        self._marks.add(storage, _Mark(message, is_taken))

    def check_data(self, storage: torch.UntypedStorage) -> None:
        """Fail where a storage is marked."""
        mark = self._marks.of(storage)
        if mark is not None:
            raise RuntimeError(mark.message)

    def check_tensor(self, tensor: torch.Tensor, *, data: bool = True) -> None:
        """Fail where the storage of a tensor is marked; without ``data``, where it was taken."""
        mark = self._marks.find(tensor) if self else None
        if mark is not None and (data or mark.is_taken):
            raise RuntimeError(mark.message)

    def check_inputs(self, inputs: Iterable[object]) -> None:
        """Fail where a tensor among the inputs of a graph is marked."""
        for value in inputs:
            if isinstance(value, torch.Tensor):
                self.check_tensor(value)


def _forget(_mark: _Mark) -> None:
    """Nothing else is kept for a storage."""
