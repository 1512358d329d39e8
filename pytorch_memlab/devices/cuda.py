"""A real CUDA device, through torch's own counters."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from ..records import DeviceInfo
from . import program_view
from .device import Device, ProgramView, Stats, reserved_bytes
from .program_view import CounterFunctions, counter_functions


def is_used(index: int) -> bool:
    """True if this process has made a context on a GPU; asking makes none."""
    # Where torch cannot tell, every GPU counts once CUDA is initialised.
    if not torch.cuda.is_initialized():
        return False
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return has_context is None or bool(has_context(index))


class CudaDevice(Device):
    """One GPU, by its index."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._counters: CounterFunctions | None = None
        self._known_properties: Any = None
        self.name = f"cuda:{index}"

    def _properties(self) -> Any:
        """Its name and size; None while CUDA is not initialised, or does not answer."""
        # They are kept: a process whose GPU has failed cannot ask again, nor can a forked child.
        if self._known_properties is None and torch.cuda.is_initialized():
            with suppress(Exception):
                self._known_properties = torch.cuda.get_device_properties(self._index)
        return self._known_properties

    @property
    def info(self) -> DeviceInfo:
        properties = self._properties()
        name = "CUDA GPU" if properties is None else properties.name
        return DeviceInfo(self.name, name, simulated=False)

    def stats(self) -> Stats:
        """Counters of the caching allocator; empty before CUDA is initialised."""
        counters = self._counters
        if counters is None:
            if not torch.cuda.is_initialized():
                return {}
            counters = counter_functions()
        stats: Stats = counters.read(self._index)
        return stats

    def reset_peaks(self) -> None:
        (self._counters or counter_functions()).reset_peaks(self._index)

    def install_view(self, view: ProgramView) -> None:
        """Let a view answer the program. Until it ends, this reads torch's functions of now."""
        # A simulation that begins later puts its own functions in their place.
        if self._counters is None and torch.cuda.is_initialized():
            self._counters = counter_functions()
            self._properties()
        program_view.install(self._index, view)

    def remove_view(self, view: ProgramView) -> None:
        program_view.remove(self._index, view)
        self._counters = None

    def capacity(self) -> int:
        properties = self._properties()
        return 0 if properties is None else int(properties.total_memory)

    def taken(self) -> int | None:
        if not torch.cuda.is_initialized():
            return None
        with suppress(Exception):  # after an illegal access of memory every call of CUDA fails
            free, total = torch.cuda.mem_get_info(self._index)
            return max(total - free - reserved_bytes(self.stats()), 0)
        return None
