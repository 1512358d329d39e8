"""Reports which tensors hold the memory."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from io import BufferedIOBase, RawIOBase, StringIO
from numbers import Integral
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, TypeVar

import torch

from ._common.process.checked_file import CheckedFile
from ._common.process.garbage_collection import no_garbage_collection
from .errors import UsageError
from .history.block_categories import TensorCategories
from .render.memory_report import LEN, header, section
from .reporter.leaks import LeakWatch
from .reporter.memory_snapshot import (
    MemorySnapshot,
    Reconciliation,
    TensorStat,
    arranged_stats,
    check_arrangement,
    device_of,
    means,
    require_device,
    stat_of,
)
from .reporter.names import TensorNames, names_of_attributes, names_of_variables
from .reporter.reconciliation import description_of, reconciled, with_allocation_lines
from .reporter.rows import Rows, rows_of
from .reporter.snapshot_differences import Difference, diff
from .tensors.lines import recorded_lines
from .tensors.live_objects import LiveObjects, alive, live_objects
from .utils import readable_size as readable_size

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["LEN", "MemReporter", "diff"]

T = TypeVar("T")


class MemReporter:
    """Lists the tensors of this process, and the memory that each holds.

    It looks at storages, not at tensors: memory that several tensors share counts once. Nothing
    here keeps a tensor, a model or an optimizer alive, and a report allocates nothing on any
    device.

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
        self._collected: list[list[weakref.ref[Any]]] = [[] for _ in LiveObjects._fields]
        self._graphs: frozenset[torch.device] = frozenset()
        self._reconciliations: dict[torch.device, Reconciliation] = {}
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
        """Find the tensors, modules and optimizers that are alive."""
        if self.pre_collect:
            gc.collect()
        with no_garbage_collection():
            live = live_objects()
            self._collected = [list(map(weakref.ref, tensors)) for tensors in live]
            for optimizer in live.optimizers:
                self._names.add_optimizer(optimizer)

    def get_stats(self) -> None:
        """Describe the collected tensors in ``device_tensor_stat``, and forget them.

        For each device there is a list of tuples: name (with ``(->other)`` if the row ``other``
        counts the storage), size, number of elements, bytes rounded up to the 512 that PyTorch's
        CUDA allocator deals in. Tensors that neither a model nor an optimizer knows have
        numbers for names; ``snapshot`` knows their variables.
        """
        rows = self._rows(lambda _: {})
        self._graphs = rows.graphs
        self._reconciliations = {
            reconciliation.device: reconciliation for reconciliation in reconciled(rows)
        }
        self.device_tensor_stat.clear()
        for row in with_allocation_lines(rows):
            self.device_tensor_stat.setdefault(row.device, []).append(stat_of(row))

    def print_stats(
        self, verbose: bool = False, target_device: torch.device | str | int | None = None
    ) -> None:
        """Print what ``get_stats`` found.

        Args:
            verbose: show which tensors share their storage with which: ``bias(->weight)``.
            target_device: print this device only, even if it holds nothing; one without an
                index stands for all of its type. None for all devices.
        """
        target = device_of(target_device)
        stats = {
            device: rows
            for device, rows in self.device_tensor_stat.items()
            if target is None or means(target, device)
        }
        if target is not None and not stats:
            counted = [
                reconciliation
                for reconciliation in self._reconciliations
                if means(target, reconciliation)
            ]
            stats = {device: [] for device in counted or [target]}
        print(header())
        for device, rows in stats.items():
            record = self._reconciliations.get(device)
            for line in section(device, rows, verbose, record, device in self._graphs):
                print(line)

    def report(
        self,
        verbose: bool = False,
        device: torch.device | str | int | None = None,
        *,
        details: bool = False,
        sort_by: str | None = None,
        min_size: int = 0,
        file: str | os.PathLike[str] | IO[str] | None = None,
    ) -> None:
        """Print the tensors that are alive now.

        Args:
            verbose: show which tensors share their storage with which: ``bias(->weight)``.
            device: report this device only; None for all devices.
            details: print ``snapshot()`` instead: names of variables, categories with their sums,
                and a reconciliation with the allocator and the driver.
            sort_by: ``size`` or ``numel`` (largest first) or ``name``; None for the order of the
                model, then by age.
            min_size: put rows of fewer bytes together.
            file: a path to write to, or an open text file; None for the standard output.

        Raises:
            UsageError: there is no such order, size or device, or ``file`` cannot be printed to.
        """
        check_arrangement(sort_by, min_size)
        output = _printed_to(file)
        target = device_of(device)
        if details:
            snapshot = self._snapshot(_caller()).on(target).arranged(sort_by, min_size)
            with output:
                print(snapshot)
            return
        self.collect_tensor()
        self.get_stats()
        if target is not None and not self._knows(target):
            require_device(target)
        for recorded_device, stats in self.device_tensor_stat.items():
            self.device_tensor_stat[recorded_device] = arranged_stats(stats, sort_by, min_size)
        with output:
            self.print_stats(verbose, target_device=target)

    def snapshot(self) -> MemorySnapshot:
        """The memory of all tensors now, as plain data that keeps nothing alive.

        Tensors that neither a model nor an optimizer knows are named after the variables that
        lead to them: of the calling functions, then globals of modules. ``print`` gives it as
        text, a notebook shows it as HTML, ``diff`` compares two.

        Returns:
            rows, categories, and where every byte of each device went.
        """
        return self._snapshot(_caller())

    @staticmethod
    def diff(before: MemorySnapshot, after: MemorySnapshot) -> Difference:
        """The tensors that came, went, grew or shrank between two snapshots, by name.

        Args:
            before: the earlier one.
            after: the later one, of the same reporter.

        Returns:
            the changes; ``print`` gives them as text.

        Raises:
            UsageError: an argument is no snapshot.
        """
        _require(MemorySnapshot, "before", before)
        _require(MemorySnapshot, "after", after)
        return diff(before, after)

    def __repr__(self) -> str:
        """Whose names it has."""
        models = ", ".join(type(model).__name__ for model in self._names.models())
        return f"<MemReporter of {models or 'all tensors'}>"

    def leaks(self, iterations: int | Iterable[T]) -> LeakWatch[T]:
        """Watch a loop for names whose memory grows with every iteration.

        Args:
            iterations: what the loop goes over, such as a data loader, or a number of iterations.

        Returns:
            an iterable in its place. After three iterations or more, ``print`` says what grew,
            and ``growing`` holds it as data.

        Raises:
            UsageError: there is nothing to go over.
        """
        items: Any = iterations
        if not isinstance(items, bool) and isinstance(items, Integral):
            if int(items) < 0:
                raise UsageError(f"iterations must be 0 or more, not {items}")
            items = range(int(items))
        if not hasattr(type(items), "__iter__") and not hasattr(type(items), "__getitem__"):
            kind = type(iterations).__name__
            raise UsageError(f"iterations must be a number or an iterable, not a {kind}")
        return LeakWatch(items, lambda: self._snapshot(_caller()))

    def to_dataframe(self) -> pd.DataFrame:
        """The tensors that are alive now, one row each.

        Returns:
            columns ``device, name, category, size, numel, dtype, bytes, memory, shares, saved_by,
            file, line``; ``bytes`` as they were asked for, ``memory`` rounded up to 512.
        """
        return self._snapshot(_caller()).to_dataframe()

    @staticmethod
    def record_lines() -> AbstractContextManager[None]:
        """Note which line makes each node of autograd, for ``saved by MulBackward0 (train.py:41)``.

        Without this, lines are known of graphs made under anomaly mode, and on a real GPU while
        ``torch.cuda.memory._record_memory_history`` is on. It holds for this thread, takes some
        10 µs for each op that makes a node, and keeps nothing alive: the note is in the node.

        Returns:
            a context manager.
        """
        return recorded_lines()

    def __str__(self) -> str:
        """The report, as ``report`` prints it."""
        return str(self._snapshot(_caller()))

    def _repr_html_(self) -> str:
        return self._snapshot(_caller())._repr_html_()

    def _knows(self, target: torch.device) -> bool:
        devices = (*self.device_tensor_stat, *self._reconciliations)
        return any(means(target, device) for device in devices)

    def _snapshot(self, frame: FrameType | None) -> MemorySnapshot:
        self.collect_tensor()
        rows = self._rows(lambda wanted: names_of_variables(frame, wanted))
        records = tuple(reconciled(rows))
        descriptions = tuple(
            (str(record.device), description_of(record.device)) for record in records
        )
        return MemorySnapshot(with_allocation_lines(rows), records, descriptions)

    def _rows(self, variables: Callable[[set[int]], dict[int, str]]) -> Rows:
        """The rows of what was collected, which is forgotten then."""
        with no_garbage_collection():
            live = LiveObjects(*map(alive, self._collected))
            _reference_from_python(live.tensors)
            self._collected = [[] for _ in LiveObjects._fields]
            wanted = set(map(id, live.tensors))
            names = {**variables(wanted), **names_of_attributes(self._names.models(), wanted)}
            categories = TensorCategories(live.modules, self._names.optimizers())
            return rows_of(live, self._names.now(names), categories)


def _require(kind: type, name: str, value: object) -> None:
    if not isinstance(value, kind):
        owner = "torch " if kind.__module__.startswith("torch") else ""
        raise UsageError(f"{name} must be a {owner}{kind.__name__}, not a {type(value).__name__}")


def _caller() -> FrameType | None:
    """The frame from which this module was called."""
    return sys._getframe(2)


def _reference_from_python(tensors: list[torch.Tensor]) -> None:
    """Make Python's references count for tensors that only C++ referenced until now."""
    base: Any = torch._C.TensorBase
    for index in range(len(tensors)):  # a variable would reference the last one
        base._fix_weakref(tensors[index])


def _printed_to(file: str | os.PathLike[str] | IO[str] | None) -> AbstractContextManager[object]:
    """Let ``print`` write to a file: what a subclass of the reporter prints goes there too."""
    # What no text can be printed to is refused at once.
    if file is None:
        return nullcontext()
    if isinstance(file, (str, os.PathLike)):
        return _written_to(CheckedFile(os.fspath(file)))
    stream: object = file
    if not hasattr(stream, "write") or isinstance(stream, (RawIOBase, BufferedIOBase)):
        kind = type(stream).__name__
        raise UsageError(f"file must be a path or a file opened for text, not a {kind}")
    if getattr(file, "closed", False):
        raise UsageError("file is closed: give an open one, or a path")
    return redirect_stdout(file)


@contextmanager
def _written_to(file: CheckedFile) -> Iterator[None]:
    with redirect_stdout(StringIO()) as printed:
        yield
    file.write(printed.getvalue())
