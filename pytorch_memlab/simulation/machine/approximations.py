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
    # bytes that one of them takes at most and that are not counted; None if no bound is known
    at_most: int | None = 0
    gives_way: bool = True  # whether less does where there is no room for so much

    def __add__(self, other: OpCount) -> OpCount:
        bound = None
        if self.at_most is not None and other.at_most is not None:
            bound = max(self.at_most, other.at_most)
        gives_way = self.gives_way and other.gives_way
        return OpCount(self.calls + other.calls, self.nbytes + other.nbytes, bound, gives_way)


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
        self._count(self.unmodelled, _name_of(op), OpCount(1, _nbytes(result), None, False))

    def count_uncounted(
        self, op: Any, unknown: str, at_most: int | None = None, *, gives_way: bool = False
    ) -> None:
        self._count(self.uncounted, (_name_of(op), unknown), OpCount(1, 0, at_most, gives_way))

    def count_estimated(self, op: Any, nbytes: int) -> None:
        self._count(self.estimated, _name_of(op), OpCount(1, nbytes))

    def _count(self, table: dict[_Key, OpCount], key: _Key, call: OpCount) -> None:
        with self._lock:
            table[key] = table.get(key, _NO_CALLS) + call
            self.events += 1


def _nbytes(result: Any) -> int:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return sum(
        item.numel() * item.element_size() for item in items if isinstance(item, torch.Tensor)
    )
