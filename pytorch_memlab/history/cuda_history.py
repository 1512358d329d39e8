"""The history of real GPUs: PyTorch's own, switched on for a while and put back.

Written from PyTorch's sources and tested on simulated GPUs, whose functions are the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from .block_categories import address_categories
from .model import AllocationHistory, Category, DeviceHistory
from .program import program
from .snapshot import history_of

MOST_EVENTS: Final = 2_000_000
"""PyTorch keeps the last ones: about 500 bytes each in a snapshot."""


def is_recorded() -> bool:
    """True if PyTorch records its history, for us or for the program."""
    is_enabled: Callable[[], bool] = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
    try:
        return is_enabled()
    except RuntimeError:  # a build with CUDA on a machine without its driver
        return False


class _Switch:
    """PyTorch's history, on for as long as one of us wants it."""

    # A history that the program records already is left as it is.

    def __init__(self) -> None:
        self._users = 0
        self._is_ours = False
        self._most = 0

    @property
    def most(self) -> int | None:
        """The number of events of each GPU that PyTorch keeps; None if the program chose it."""
        return self._most if self._is_ours else None

    def on(self, most: int) -> None:
        if not self._users and not is_recorded():
            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=most
            )
            self._is_ours, self._most = True, most
        self._users += 1

    def off(self) -> None:
        """One less wants it: PyTorch forgets its events when it is switched off."""
        self._users -= 1
        if not self._users and self._is_ours:
            self._is_ours = False
            torch.cuda.memory._record_memory_history(None)


_switch = _Switch()


class CudaHistory:
    """Records all GPUs of the process between ``begin`` and ``end``."""

    # A history that the program records already is read and left as it is, and so is that of the
    # first one of us, with as many events as it keeps.

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._began = 0
        self._marks: dict[int, list[tuple[int, Category]]] = {}

    def begin(self) -> None:
        self._began = time.time_ns() // 1000
        self._marks.clear()
        _switch.on(self._most)
        program.notes = (*program.notes, self._note)
        program.begin()

    def end(self) -> AllocationHistory:
        program.end()
        program.notes = tuple(note for note in program.notes if note != self._note)
        try:
            return self.so_far()
        finally:
            _switch.off()

    def so_far(self) -> AllocationHistory:
        history = history_of(torch.cuda.memory._snapshot())
        live = address_categories()
        devices = [self._described(device, live) for device in history.devices]
        return replace(history, devices=devices)

    def _note(self, storages: Sequence[torch.UntypedStorage], category: Category) -> None:
        for storage in storages:
            address = storage.data_ptr()
            if address:
                self._marks.setdefault(address, []).append((time.time_ns() // 1000, category))

    def _described(self, device: DeviceHistory, live: dict[int, Category]) -> DeviceHistory:
        """The events since the beginning, with the categories of their blocks."""
        log = device.events
        begin = bisect_left(log.times, self._began)
        events = log.part(begin, len(log))
        allocated: dict[int, int] = {}
        for number, event in enumerate(events):
            if event.action == "alloc":
                allocated[event.address] = number
            elif event.action == "free_completed":
                first = allocated.pop(event.address, None)
                if first is not None:
                    began = events.times[first]
                    events.set_category(first, self._marked(event.address, began, event.time))
        now = time.time_ns() // 1000
        for address, number in allocated.items():
            marked = self._marked(address, events.times[number], now)
            if marked is Category.UNKNOWN:
                marked = live.get(address, marked)
            events.set_category(number, marked)
        segments = []
        for segment in device.segments:
            blocks = []
            for block in segment.blocks:
                category = live.get(block.address, self._marked(block.address, 0, now))
                blocks.append(replace(block, category=category))
            segments.append(replace(segment, blocks=tuple(blocks)))
        # PyTorch does not tell how many events it dropped, nor whether it did.
        may_lack = begin == 0 and len(log) == _switch.most
        dropped = None if may_lack else 0
        return DeviceHistory(device.device, events, segments, dropped=dropped)

    def _marked(self, address: int, began: int, ended: int) -> Category:
        """The last note of an address between two times."""
        for moment, category in reversed(self._marks.get(address, ())):
            if began <= moment <= ended:
                return category
        return Category.UNKNOWN
