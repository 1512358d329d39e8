"""Ops of whose kernels too little is known: counted, so that they can be named at their line."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch

_Key = TypeVar("_Key", str, tuple[str, str])

_name_of = cache(str)  # an op's name, which PyTorch would put together at every call


@dataclass(frozen=True, slots=True)
class OpCount:
    """Calls of one op."""

    calls: int = 0  # how many
    nbytes: int = 0  # bytes, of all of them together

    def __add__(self, other: OpCount) -> OpCount:
        return OpCount(self.calls + other.calls, self.nbytes + other.nbytes)


_NO_CALLS = OpCount()


class OpApproximations:
    """Such ops of one GPU, by their names with namespace and overload."""

    def __init__(self) -> None:
        # ops without an entry in the table, with the bytes that they returned
        self.unmodelled: dict[str, OpCount] = {}
        # ops with an entry that took memory of unknown size all the same, each with what that
        # memory is, such as ``cuDNN workspaces``
        self.uncounted: dict[tuple[str, str], OpCount] = {}
        # ops whose entry is an estimate and was used, with the bytes that they took on top of their
        # outputs
        self.estimated: dict[str, OpCount] = {}
        self.events = 0  # how often anything was counted
        self._lock = threading.Lock()

    def count_unmodelled(self, op: Any, result: Any) -> None:
        self._count(self.unmodelled, _name_of(op), _nbytes(result))

    def count_uncounted(self, op: Any, unknown: str) -> None:
        self._count(self.uncounted, (_name_of(op), unknown), 0)

    def count_estimated(self, op: Any, nbytes: int) -> None:
        self._count(self.estimated, _name_of(op), nbytes)

    def _count(self, table: dict[_Key, OpCount], key: _Key, nbytes: int) -> None:
        with self._lock:
            before = table.get(key, _NO_CALLS)
            table[key] = OpCount(before.calls + 1, before.nbytes + nbytes)
            self.events += 1


def _nbytes(result: Any) -> int:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return sum(
        item.numel() * item.element_size() for item in items if isinstance(item, torch.Tensor)
    )
