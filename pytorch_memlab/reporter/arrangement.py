"""The order of the rows of a report, and rows for several small tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .._common.quoted import quoted
from ..errors import UsageError
from .records import TensorRow

if TYPE_CHECKING:
    import torch

TensorStat: TypeAlias = tuple[str, tuple[object, ...], int, int]
"""Name (with the tensor that it shares its storage with), size, number of elements, bytes."""

SHARES: Final = "(->"

_ORDERS: Final[dict[str, Callable[[str, int, int], Any]]] = {
    "size": lambda _name, _numel, nbytes: -nbytes,
    "name": lambda name, _numel, _nbytes: name,
    "numel": lambda _name, numel, _nbytes: -numel,
}


def check_arrangement(sort_by: str | None, min_size: int) -> None:
    """Refuse an order or a size that there is not."""
    if sort_by is not None and sort_by not in tuple(_ORDERS):
        raise UsageError(f"sort_by must be one of {', '.join(_ORDERS)}, not {quoted(sort_by)}")
    size: Any = min_size
    if isinstance(size, bool) or not isinstance(size, Integral) or int(size) < 0:
        raise UsageError(f"min_size must be a number of bytes, 0 or more, not {quoted(min_size)}")


def arranged_rows(rows: Iterable[TensorRow], sort_by: str | None, min_size: int) -> list[TensorRow]:
    """Rows in another order, the small ones of each device and category as one row at the end."""
    large: list[TensorRow] = []
    small: dict[tuple[torch.device, str], list[TensorRow]] = {}
    for row in rows:
        if row.nbytes >= min_size:
            large.append(row)
        else:
            small.setdefault((row.device, row.category), []).append(row)
    if sort_by is not None:
        order = _ORDERS[sort_by]
        large.sort(key=lambda row: order(row.name, row.numel, row.nbytes))
    return large + [group[0] if len(group) == 1 else _sum(group) for group in small.values()]


def stat_of(row: TensorRow) -> TensorStat:
    name = row.name if row.shares is None else f"{row.name}{SHARES}{row.shares})"
    return name, row.size, row.numel, row.memory


def arranged_stats(stats: list[TensorStat], sort_by: str | None, min_size: int) -> list[TensorStat]:
    """Tuples in another order, the small ones as one at the end."""
    large = [stat for stat in stats if stat[3] >= min_size]
    small = [stat for stat in stats if stat[3] < min_size]
    if sort_by is not None:
        order = _ORDERS[sort_by]
        large.sort(key=lambda stat: order(stat[0], stat[2], stat[3]))
    if len(small) > 1:
        numel, memory = sum(stat[2] for stat in small), sum(stat[3] for stat in small)
        small = [(f"{len(small)} smaller", (), numel, memory)]
    return large + small


def _sum(rows: list[TensorRow]) -> TensorRow:
    return TensorRow(
        f"{len(rows)} smaller",
        rows[0].device,
        (),
        sum(row.numel for row in rows),
        sum(row.memory for row in rows),
        category=rows[0].category,
        nbytes=sum(row.nbytes for row in rows),
    )
