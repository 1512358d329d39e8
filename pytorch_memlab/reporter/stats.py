"""Rows as the tuples of ``MemReporter.device_tensor_stat``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .records import TensorRow
from .text import SHARES

TensorStat: TypeAlias = tuple[str, tuple[object, ...], int, int]

_ORDERS: Final[dict[str, Callable[[TensorStat], Any]]] = {
    "size": lambda stat: -stat[3],
    "name": lambda stat: stat[0],
    "numel": lambda stat: -stat[2],
}


def stat_of(row: TensorRow) -> TensorStat:
    """Name (with what it shares its storage with), size, number of elements, bytes."""
    name = row.name if row.shares is None else f"{row.name}{SHARES}{row.shares})"
    return name, row.size, row.numel, row.memory


def arranged(stats: list[TensorStat], sort_by: str | None, min_size: int) -> list[TensorStat]:
    """The same in another order, small ones put together."""
    large = [stat for stat in stats if stat[3] >= min_size]
    small = [stat for stat in stats if stat[3] < min_size]
    if sort_by is not None:
        large.sort(key=_ORDERS[sort_by])
    if len(small) > 1:
        numel, memory = sum(stat[2] for stat in small), sum(stat[3] for stat in small)
        small = [(f"{len(small)} smaller", (), numel, memory)]
    return large + small
