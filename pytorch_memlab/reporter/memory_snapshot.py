"""The tensors and the memory of each device at one moment, as plain data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .._common.text.displayed import Displayed
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import quoted
from ..devices import get_device
from ..errors import UsageError
from ..history.model import Category

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ..tensors.lines import SourceLine
    from ..tensors.memory import SymbolicSize


ALLOCATION_UNIT = 512
"""Bytes: the CUDA caching allocator rounds every request up to a multiple of this."""

PARAMETERS = Category.PARAMETERS.value
GRADIENTS = Category.GRADIENTS.value
OPTIMIZER_STATE = Category.OPTIMIZER_STATE.value
BUFFERS = Category.BUFFERS.value
SAVED = Category.SAVED.value
OTHERS = Category.OTHERS.value

CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, SAVED, OTHERS)
"""In the order of a report."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of a report: a tensor, or a part of it that has its own memory."""

    name: str  # what the tensor is called
    device: torch.device  # where its memory is
    size: tuple[int | SymbolicSize, ...]  # length of each dimension, ``(1,)`` for a scalar
    numel: int  # number of elements
    memory: int  # bytes, a multiple of 512; 0 for a row whose storage an earlier row counts
    shares: str | None = None  # name of that earlier row, else None
    category: str = OTHERS  # one of ``CATEGORIES``
    nbytes: int = 0  # bytes of the storage as it was asked for; 0 where ``memory`` is
    dtype: str = ""  # such as ``float32``
    # whether it looks at a part of its storage, or at all of it in another way
    is_view: bool = False
    # name of the node of autograd that saved the storage for backward, else None
    saved_by: str | None = None
    # the line that made that node, or else that allocated the storage, where it is known
    line: SourceLine | None = None
    # the same in two snapshots for the same part of the same tensor, and for no other; empty for
    # a row whose storage an earlier row counts
    identity: str = ""
    # name of the variable whose graph saved the storage, if no variable looks at it, else None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The memory of one device in parts, in bytes; each sum holds to the byte."""

    # ``tensors + saved + rounding + workspaces + unknown == allocated``, ``allocated + cached +
    # graphs == reserved``, and where the driver reports it, ``reserved + context + others ==
    # used``.

    device: torch.device  # which
    tensors: int  # storages of live tensors, each once, as many bytes as were asked for
    saved: int  # storages that autograd saved for backward
    rounding: int  # what the allocator's blocks are larger than what was asked for
    workspaces: int  # what kernels keep between calls: cuBLAS' workspaces
    unknown: int  # allocated, and none of these
    allocated: int  # what the allocator counts as allocated
    cached: int  # what it keeps for later
    reserved: int  # what it holds of the driver
    # other bytes of the process, None if the driver does not report them
    context: int | None = None
    others: int | None = None  # what other processes hold, None if the driver does not report them
    used: int | None = None  # what is not free on the device, None if the driver was not asked
    graphs: int = 0  # what private pools of CUDA graphs keep; it serves no other code
    foreign: int = 0  # bytes of tensors whose memory is not this allocator's; no part of these sums
    shows_blocks: bool = True  # if not, rounding and workspaces are part of what is unknown
    # workspaces are blocks of their size without a tensor: PyTorch does not tell where they are
    workspaces_by_size: bool = False
    results_of_cells: int = 0  # bytes that IPython keeps
    frozen_objects: int = 0  # under gc.freeze(), where Python shows no tensors, if some is unknown


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


_COLUMNS = (
    *("device", "name", "category", "size", "numel", "dtype", "bytes", "memory"),
    *("shares", "saved_by", "file", "line"),
)


@dataclass(frozen=True, slots=True)
class MemorySnapshot(Displayed):
    """The tensors at one moment, and where the memory of each device went.

    ``str`` gives it as text; a notebook shows it as HTML.
    """

    rows: tuple[TensorRow, ...]  # GPUs first, meta and fake tensors (which hold nothing) last
    reconciliations: tuple[Reconciliation, ...] = ()  # one for each device that counts its memory
    descriptions: tuple[tuple[str, str], ...] = ()  # name of a device -> what the hardware is

    def devices(self) -> list[torch.device]:
        """The devices, in the order of the report."""
        mine = [row.device for row in self.rows]
        return list(
            dict.fromkeys(
                [*mine, *(reconciliation.device for reconciliation in self.reconciliations)]
            )
        )

    def totals(self, device: torch.device) -> dict[str, int]:
        """Bytes of each category on one device, as many as were asked for."""
        sizes = dict.fromkeys(CATEGORIES, 0)
        for row in self.rows:
            if row.device == device:
                sizes[row.category] += row.nbytes
        return sizes

    def on(self, device: torch.device | str | int | None) -> MemorySnapshot:
        """The part that is about one device.

        Args:
            device: one without an index stands for all of its type; None for all devices.

        Raises:
            UsageError: there is no such device.
        """
        target = device_of(device)
        if target is None:
            return self
        rows = tuple(row for row in self.rows if means(target, row.device))
        records = tuple(
            reconciliation
            for reconciliation in self.reconciliations
            if means(target, reconciliation.device)
        )
        if not rows and not records:
            require_device(target)
        return replace(self, rows=rows, reconciliations=records)

    def arranged(self, sort_by: str | None = None, min_size: int = 0) -> MemorySnapshot:
        """The rows in another order, small ones put together.

        Args:
            sort_by: ``size`` or ``numel`` (largest first), ``name``; None for the report's order.
            min_size: rows of fewer bytes become one row for each device and category.

        Returns:
            a snapshot with the same sums.

        Raises:
            UsageError: there is no such order, or no such size.
        """
        check_arrangement(sort_by, min_size)
        rows = [row for row in self.rows if row.nbytes >= min_size]
        if sort_by is not None:
            order = _ORDERS[sort_by]
            rows.sort(key=lambda row: order(row.name, row.numel, row.nbytes))
        small: defaultdict[tuple[torch.device, str], list[TensorRow]] = defaultdict(list)
        for row in self.rows:
            if row.nbytes < min_size:
                small[row.device, row.category].append(row)
        rows += [group[0] if len(group) == 1 else _sum(group) for group in small.values()]
        places = {device: place for place, device in enumerate(self.devices())}
        rows.sort(key=lambda row: places[row.device])
        return replace(self, rows=tuple(rows))

    def to_dataframe(self) -> pd.DataFrame:
        """One row per tensor.

        Returns:
            columns ``device, name, category, size, numel, dtype, bytes, memory, shares, saved_by,
            file, line``; ``bytes`` as they were asked for, ``memory`` rounded up to 512.
        """
        import pandas as pd

        rows = [
            (
                *(str(row.device), row.name, row.category, row.size, row.numel, row.dtype),
                *(row.nbytes, row.memory, row.shares, row.saved_by),
                *(row.line or (None, None)),
            )
            for row in self.rows
        ]
        frame = pd.DataFrame(rows, columns=list(_COLUMNS), dtype="object")
        return frame.astype(
            {"numel": "int64", "bytes": "int64", "memory": "int64", "line": "Int64"}
        )

    def __repr__(self) -> str:
        """The bytes on each device."""
        return f"<{type(self).__name__}: {self.summary()}>"

    def summary(self) -> str:
        """Bytes and tensors of each device, in a few words."""
        parts = []
        for device in self.devices():
            sizes = [row.nbytes for row in self.rows if row.device == device]
            parts.append(f"{prose_size(sum(sizes))} in {counted(len(sizes), 'tensor')} on {device}")
        return ", ".join(parts) or "no tensors"


def sizes_by(
    name_of: Callable[[TensorRow], str], snapshot: MemorySnapshot
) -> dict[tuple[str, str], int]:
    """Bytes by device and by a name that a function gives to each row."""
    sizes = Counter[tuple[str, str]]()
    for row in snapshot.rows:
        if row.nbytes:
            sizes[str(row.device), name_of(row)] += row.nbytes
    return sizes


def means(target: torch.device, device: torch.device) -> bool:
    """True if one device is the other, or stands for all of its type."""
    return target.type == device.type and target.index in (None, device.index)


def device_of(spec: torch.device | str | int | None) -> torch.device | None:
    """The device that an argument means; None for None."""
    import torch

    if spec is None:
        return None
    try:
        return torch.device("cuda", spec) if isinstance(spec, int) else torch.device(spec)
    except (RuntimeError, TypeError):
        raise UsageError(
            f"no device {quoted(spec)}: give an index, or a name such as 'cuda:0' or 'cpu'"
        ) from None


def require_device(target: torch.device) -> None:
    """Refuse a device on which no tensor is, and none can be."""
    if target.type != "meta":
        get_device(str(target))
