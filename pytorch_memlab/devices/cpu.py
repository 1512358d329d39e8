"""Tensors of the host, counted by following their storages."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from .._common.frames.traceback_frames import clear_internal_frames
from .._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .._common.torch.storages import StorageTable, storages_of
from ..memory_fields import GROUPS, METRICS, OVERSIZE_GROUPS, POOLS
from ..records import DeviceInfo
from .device import Device, Stats

_COUNTS = ("allocation", "active")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")


class Followed(NamedTuple):
    """A storage that is counted."""

    number: int  # of the storage among those alive (``_cdata``)
    nbytes: int  # its bytes


class CpuDevice(Device):
    """The CPU: every storage that an op makes while there is a reader."""

    # It has no pools and no cache: reserved is what is allocated. Memory that ops take and give
    # back inside, and tensors made before, are not seen.

    name = "cpu"

    def __init__(self) -> None:
        self._stats: Stats = {
            group: {pool: dict.fromkeys(METRICS, 0) for pool in POOLS} for group in GROUPS
        }
        self.storages: StorageTable[Followed] = StorageTable(self._free)
        self.observers: tuple[Callable[[str, Followed], object], ...] = ()
        """Called with ``alloc`` or ``free`` and the storage."""
        self.op_observers: tuple[Callable[[Any], object], ...] = ()
        """Called with every op before it runs."""
        self._thread = _ThreadState()

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo("cpu", platform.processor() or platform.machine(), simulated=False)

    def stats(self) -> Stats:
        self.storages.sweep()
        stats: Stats = {
            group: {pool: dict(metrics) for pool, metrics in pools.items()}
            for group, pools in self._stats.items()
        }
        return stats | {group: dict.fromkeys(METRICS, 0) for group in OVERSIZE_GROUPS}

    def reset_peaks(self) -> None:
        self.storages.sweep()
        for group in (*_COUNTS, *_BYTES):
            for metrics in self._stats[group].values():
                metrics["peak"] = metrics["current"]

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """These peaks are read by this package only."""
        return True

    def capacity(self) -> int:
        return int(psutil.virtual_memory().total)

    def taken(self) -> int:
        return 0

    def context(self) -> int:
        return 0

    def start_tracking(self) -> None:
        """Follow the storages that this thread makes, until as many stops as starts."""
        thread = self._thread
        if not thread.readers:
            thread.mode = _Births(self)
            thread.mode.__enter__()  # type: ignore[no-untyped-call]
        thread.readers += 1

    def stop_tracking(self) -> None:
        thread = self._thread
        thread.readers = max(0, thread.readers - 1)
        if thread.readers or thread.mode is None:
            return
        mode, thread.mode = thread.mode, None
        if _get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        else:
            # The program has entered another mode since, which it alone may take off.
            mode.active = False

    def follow(self, tensor: torch.Tensor) -> None:
        """Count the storages of a tensor of the host until they die."""
        if tensor.device.type == "cpu":
            for storage in storages_of(tensor):
                if storage._cdata not in self.storages.known:
                    with uninterrupted(*STANDARD_SIGNALS):
                        self._begin_to_follow(storage)

    def _begin_to_follow(self, storage: torch.UntypedStorage) -> None:
        followed = Followed(storage._cdata, storage.nbytes())
        self.storages.add(storage, followed)
        self._count(followed.nbytes, "allocated", 1)
        for observer in self.observers:
            observer("alloc", followed)

    def _free(self, followed: Followed) -> None:
        self._count(followed.nbytes, "freed", -1)
        for observer in self.observers:
            with suppress(RecursionError, MemoryError):  # after these it is freed once more
                observer("free", followed)

    def _count(self, nbytes: int, metric: str, sign: int) -> None:
        for groups, amount in ((_COUNTS, 1), (_BYTES, nbytes)):
            for group in groups:
                counters = self._stats[group]["all"]
                counters["current"] += sign * amount
                counters["peak"] = max(counters["peak"], counters["current"])
                counters[metric] += amount


class _ThreadState(threading.local):
    """The readers of one thread, and the mode that follows storages there."""

    def __init__(self) -> None:
        self.readers = 0
        self.mode: _Births | None = None


class _Births(TorchDispatchMode):
    """Tells a device of every tensor that an op returns."""

    def __init__(self, device: CpuDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.active = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not needed here, and it would import the compiler at the first op."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for observer in self._device.op_observers if self.active else ():
            observer(func)
        try:
            result = func(*args, **(kwargs or {}))
        except BaseException as error:
            clear_internal_frames(error)
            del args, kwargs
            raise
        if not self.active:
            return result
        for item in result if isinstance(result, (tuple, list)) else (result,):
            for tensor in item if isinstance(item, (tuple, list)) else (item,):
                if isinstance(tensor, torch.Tensor):
                    self._device.follow(tensor)
        return result
