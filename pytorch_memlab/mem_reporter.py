"""Which tensors hold the memory."""

from __future__ import annotations

import gc
from typing import TypeAlias

import torch
from torch.utils.weak import TensorWeakRef

from .errors import MemlabError, UsageError
from .reporter.names import TensorNames
from .reporter.rows import TensorRow, rows_of
from .reporter.text import LEN, SHARES, header, section
from .tensors.living import living

__all__ = ["LEN", "MemReporter"]

TensorStat: TypeAlias = tuple[str, tuple[object, ...], int, int]


class MemReporter:
    """Lists the tensors of this process, and the memory that each holds.

    It looks at storages, not at tensors: memory that several tensors share counts once, as bytes
    rounded up to the 512 that PyTorch's CUDA allocator deals in. Nothing here keeps a tensor, a
    model or an optimizer alive, and a report allocates nothing on any device.

    Args:
        model: gives names to its parameters and buffers.
        pre_collect: run the garbage collector before each report, so that tensors in garbage
            cycles are not listed. This changes the program under inspection.

    Raises:
        UsageError: ``model`` is no ``torch.nn.Module``.
    """

    def __init__(self, model: torch.nn.Module | None = None, pre_collect: bool = False) -> None:
        self.pre_collect = pre_collect
        self.device_tensor_stat: dict[torch.device, list[TensorStat]] = {}
        self._names = TensorNames()
        self._tensors: list[TensorWeakRef] = []
        self._graphs: frozenset[torch.device] = frozenset()
        if model is not None:
            _require(torch.nn.Module, "model", model)
            self._names.add_model(model)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the state of an optimizer, such as ``Adam.weight.exp_avg``.

        Optimizers that are alive at a report are found without this.

        Args:
            optimizer: its state may come later.

        Raises:
            UsageError: it is no ``torch.optim.Optimizer``.
        """
        _require(torch.optim.Optimizer, "optimizer", optimizer)
        self._names.add_optimizer(optimizer)

    def collect_tensor(self) -> None:
        """Find the tensors and optimizers that are alive."""
        if self.pre_collect:
            gc.collect()
        self._tensors = []
        for found in living(torch.Tensor, torch.optim.Optimizer):
            if issubclass(type(found), torch.optim.Optimizer):
                self._names.add_optimizer(found)
            else:
                self._tensors.append(TensorWeakRef(found))

    def get_stats(self) -> None:
        """Describe the collected tensors in ``device_tensor_stat``, and forget them.

        For each device there is a list of tuples: name (with ``(->other)`` if the row ``other``
        counts the storage), size, number of elements, bytes.
        """
        rows = rows_of(self._take_collected(), self._names)
        self._graphs = rows.graphs
        self.device_tensor_stat.clear()
        for row in rows.tensors:
            self.device_tensor_stat.setdefault(row.device, []).append(_stat(row))

    def _take_collected(self) -> list[torch.Tensor]:
        collected, self._tensors = self._tensors, []
        return [tensor for found in collected if (tensor := found()) is not None]

    def print_stats(self, verbose: bool = False, target_device: torch.device | None = None) -> None:
        """Print what ``get_stats`` found.

        Args:
            verbose: show which tensors share their storage with which: ``bias(->weight)``.
            target_device: print this device only, even if it holds nothing; one without an
                index stands for all of its type. None for all devices.
        """
        stats = {
            device: rows
            for device, rows in self.device_tensor_stat.items()
            if target_device is None or _means(target_device, device)
        }
        if target_device is not None:
            stats = stats or {target_device: []}
        print(header())
        for device, rows in stats.items():
            graph = device in self._graphs
            for line in section(device, rows, verbose, _allocated(device), graph):
                print(line)

    def report(self, verbose: bool = False, device: torch.device | str | None = None) -> None:
        """Print the tensors that are alive now.

        Args:
            verbose: show which tensors share their storage with which: ``bias(->weight)``.
            device: report this device only; None for all devices.
        """
        self.collect_tensor()
        self.get_stats()
        target = None if device is None else torch.device(device)
        self.print_stats(verbose, target_device=target)


def _require(kind: type, name: str, value: object) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be a torch {kind.__name__}, not a {type(value).__name__}")


def _stat(row: TensorRow) -> TensorStat:
    name = row.name if row.shares is None else f"{row.name}{SHARES}{row.shares})"
    return name, row.size, row.numel, row.memory


def _means(target: torch.device, device: torch.device) -> bool:
    return target.type == device.type and target.index in (None, device.index)


def _allocated(device: torch.device) -> int | None:
    """Bytes that the device's allocator counts as allocated, None if it has no counters."""
    if device.type in ("cpu", "meta"):
        return None
    from .devices import get_device

    try:
        stats = get_device(device).stats()
    except (MemlabError, RuntimeError):
        return None
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0
