"""Two GPUs to profile lines on, both with counted calls: a stand-in, and the real one.

The stand-in is counters that ``torch.cuda`` reports, and no memory behind them. Whatever profiles
lines through ``torch.cuda`` meets the same device at the same price.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_GROUPS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_POOLS = ("all", "small_pool", "large_pool")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_SCALARS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)
_SEGMENT = 2 << 20
_BLOCK = 512


class CountedGPU:
    """Counts how often a profiler reads the counters and resets them."""

    def __init__(self) -> None:
        self.reads = 0
        self.resets = 0

    def read(self, device: Any = None) -> dict[str, Any]:
        """``torch.cuda.memory_stats_as_nested_dict``."""
        raise NotImplementedError

    def reset_peaks(self, device: Any = None) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        raise NotImplementedError

    def reset_accumulated(self, device: Any = None) -> None:
        """``torch.cuda.reset_accumulated_memory_stats``."""
        raise NotImplementedError

    def allocation(self) -> Callable[[], object]:
        """Allocates when called, without an own Python frame."""
        raise NotImplementedError

    def install(self) -> None:
        """Answer for ``torch.cuda``; to be called before a profiler is imported."""
        self._replace("memory_stats_as_nested_dict", self.read)
        self._replace("reset_peak_memory_stats", self.reset_peaks)
        self._replace("reset_accumulated_memory_stats", self.reset_accumulated)

    def _replace(self, name: str, call: object) -> None:
        for module in (torch.cuda, torch.cuda.memory):
            if hasattr(module, name):
                setattr(module, name, call)


class RealGPU(CountedGPU):
    """The first GPU of this machine."""

    def __init__(self) -> None:
        super().__init__()
        self._read = torch.cuda.memory_stats_as_nested_dict
        self._reset_peaks = torch.cuda.reset_peak_memory_stats
        self._reset_accumulated = torch.cuda.reset_accumulated_memory_stats

    def read(self, device: Any = None) -> dict[str, Any]:
        """``torch.cuda.memory_stats_as_nested_dict``."""
        self.reads += 1
        stats: dict[str, Any] = self._read(device)
        return stats

    def reset_peaks(self, device: Any = None) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self.resets += 1
        self._reset_peaks(device)

    def reset_accumulated(self, device: Any = None) -> None:
        """``torch.cuda.reset_accumulated_memory_stats``."""
        self.resets += 1
        self._reset_accumulated(device)

    def allocation(self) -> Callable[[], object]:
        """Allocates a block of 512 bytes, and frees it."""
        return partial(torch.empty, _BLOCK, dtype=torch.uint8, device="cuda")


class StandInGPU(CountedGPU):
    """Counters as the caching allocator keeps them, of blocks of 512 bytes in one segment."""

    def __init__(self) -> None:
        super().__init__()
        self._pools = {group: {pool: _statistic() for pool in _POOLS} for group in _GROUPS}
        self._others: dict[str, Any] = {name: _statistic() for name in _OVERSIZE}
        self._others |= dict.fromkeys(_SCALARS, 0)
        self._requests: list[int] = []
        self._grow("segment", 1)
        self._grow("reserved_bytes", _SEGMENT)
        self._dump = b""
        self._dump_counters()

    def read(self, device: Any = None) -> dict[str, Any]:
        """A new dict of the counters, as PyTorch makes one at every call."""
        del device
        self.reads += 1
        if self._requests:
            self._settle()
        counters: dict[str, Any] = marshal.loads(self._dump)
        return counters

    def reset_peaks(self, device: Any = None) -> None:
        """Every peak becomes the current value, which it is: nothing is ever freed."""
        del device
        self.resets += 1

    def reset_accumulated(self, device: Any = None) -> None:
        """Left out: a stand-in's own time is not what is measured."""
        del device
        self.resets += 1

    def allocation(self) -> Callable[[], object]:
        """Allocates a block of 512 bytes."""
        return partial(self._requests.append, _BLOCK)

    def install(self) -> None:
        """Answer for ``torch.cuda`` as one initialised device."""
        super().install()
        for name, call in {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "_lazy_init": lambda: None,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda _device=None: "stand-in",
            "empty_cache": lambda: None,
            "device": _Device,
        }.items():
            self._replace(name, call)

    def _settle(self) -> None:
        for group in ("allocation", "active"):
            self._grow(group, len(self._requests))
        for group in ("allocated_bytes", "active_bytes", "requested_bytes"):
            self._grow(group, sum(self._requests))
        self._requests.clear()
        self._dump_counters()

    def _grow(self, group: str, amount: int) -> None:
        for pool in ("all", "small_pool"):
            statistic = self._pools[group][pool]
            for metric in ("current", "peak", "allocated"):
                statistic[metric] += amount

    def _dump_counters(self) -> None:
        self._dump = marshal.dumps(self._pools | self._others)


class _Device:
    """``torch.cuda.device`` where there is but one."""

    def __init__(self, device: object) -> None:
        del device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


def _statistic() -> dict[str, int]:
    return dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
