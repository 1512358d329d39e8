"""The tensors of a dry run that have no values, and reads of such values by the program.

See Note [What a dry run assumes].
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import torch

from ..._common.frames.program_lines import current_line
from ..._common.torch.storages import StorageTable, storages_of
from ...errors import AssumedValueError
from .assumed_sizes import AssumedSizes
from .expert_routing import ExpertRouting


class Bound(Enum):
    """The relation of what a dry run takes to what is true."""

    # ``VALUE``: a value that the program reads, and may go on from anywhere. The others are sizes.

    VALUE = "assumed"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    EITHER = "more or less"
    GIVEN = "given"  # the user said how much


@dataclass(frozen=True, slots=True)
class DataDependentRead:
    """One place where a program read values that its tensors do not have."""

    op: str  # the op that it called, such as ``aten::nonzero``
    name: str  # what the program calls it
    assumption: str  # what a dry run assumes the values to be
    bound: Bound
    filename: str  # of the source of the program
    line: int  # in that file
    count: int  # how often

    def __str__(self) -> str:
        """As a compiler says where something is."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.filename}:{self.line}: {self.op} read values that are not there, {times}"


class DataDependentReads:
    """Counts the data-dependent reads of one dry run, by place."""

    def __init__(self) -> None:
        self.events = 0  # how often anything was counted
        self.strict = False  # whether one is an error
        self._counts: Counter[tuple[str, str, str, Bound, str, int]] = Counter()
        self._lock = threading.Lock()

    def count(self, op: str, name: str, assumption: str, bound: Bound = Bound.VALUE) -> None:
        """Count one, at the innermost line of the program."""
        place = current_line()
        if self.strict and bound is not Bound.GIVEN:
            filename, line = place
            size = "" if bound is Bound.VALUE else ", give the size (assume, --assume)"
            raise AssumedValueError(
                f"{filename}:{line}: {name} reads values that a dry run does not have "
                f"(assumed {assumption} otherwise): do not read them{size}, or run without "
                "compute=False (--dry-run); without strict=True (--strict) the line is marked *"
            )
        with self._lock:
            self._counts[(op, name, assumption, bound, *place)] += 1
            self.events += 1

    def all(self) -> tuple[DataDependentRead, ...]:
        return tuple(
            DataDependentRead(*where, count) for where, count in self._counts.copy().items()
        )


_NORESERVE = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``, which Python's ``mmap`` names from 3.12 on only."""


def uncommitted(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor whose memory is reserved and never written.

    >>> uncommitted((2**20, 2**20), (2**20, 1), torch.float32).shape
    torch.Size([1048576, 1048576])
    """
    # Linux refuses a single allocation above memory and swap, except one that says that it needs no
    # reserve: such a one is taken then. Its storage cannot be resized.
    try:
        return torch.empty_strided(size, stride, dtype=dtype)
    except RuntimeError:
        if not _NORESERVE or 0 in size:
            raise
        return _mapped(size, stride, dtype)


def _mapped(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    nbytes = (last + 1) * dtype.itemsize
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        region = mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, OverflowError) as error:
        # In the words of torch's own allocator, which others look for.
        raise RuntimeError(
            f"can't reserve memory: you tried to allocate {nbytes} bytes. {error}"
        ) from None
    storage = torch.frombuffer(region, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size), tuple(stride))


_MOST_INTEGERS = 65_536
_MOST_OTHERS = 4_096
_LARGEST = torch.complex128.itemsize
INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_untyped_storage = torch._C.TensorBase.untyped_storage


class TensorValues:
    """The storages of one dry run that have no values."""

    def __init__(self, assumed: AssumedSizes | None = None) -> None:
        self.assumed = AssumedSizes() if assumed is None else assumed  # what the user says of sizes
        # those storages, True where they hold zeros that stand for values
        self.absent: StorageTable[bool] = StorageTable(_forget, waits=True)
        self.reads = DataDependentReads()  # where the program read values that are not there
        # those with values of more elements than are usually computed with, with their bytes
        self.held: StorageTable[int] = StorageTable(self._released)
        self.held_bytes = 0
        # the next truth values that are read, the last first; then they are false
        self.answers: list[bool] = []
        self.routing: ExpertRouting | None = None  # None: what tokens choose has no values

    @contextmanager
    def answered(self, *answers: bool) -> Iterator[None]:
        """Within: truths that are read and not there are these, in this order."""
        outer, self.answers = self.answers, list(reversed(answers))
        try:
            yield
        finally:
            self.answers = outer

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
        return storage._cdata in self.absent.known

    def forget_values(self, tensor: torch.Tensor) -> None:
        """Take the values from a tensor's storage: something unknown was written to it."""
        self.add(_untyped_storage(tensor), True)

    def add(self, storage: torch.UntypedStorage, holds_zeros: bool) -> None:
        """Note that a storage has no values, if it is not noted yet."""
        if storage._cdata not in self.absent.known:
            self._release(storage)
            self.absent.add(storage, holds_zeros)

    def hold(self, storage: torch.UntypedStorage) -> None:
        """Note that a storage has values, and count it if it is large."""
        self.absent.drop(storage)
        self._release(storage)
        nbytes = storage.nbytes()
        if nbytes > _MOST_OTHERS * _LARGEST:
            self.held_bytes += nbytes
            self.held.add(storage, nbytes)

    def _release(self, storage: torch.UntypedStorage) -> None:
        nbytes = self.held.drop(storage)
        if nbytes is not None:
            self._released(nbytes)

    def _released(self, nbytes: int) -> None:
        self.held_bytes -= nbytes

    def make(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor without values."""
        stride = torch.empty(size, device="meta").stride()
        return self.make_strided(size, stride, dtype)

    def make_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
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
    return numel <= _MOST_OTHERS or (numel <= _MOST_INTEGERS and dtype in INTEGERS)


def _forget(_holds_zeros: bool) -> None:
    """Nothing else is kept for a storage without values."""
