"""Records the holders of the memory at the peak, and all events if they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import Final

import torch

from .._common.frames.call_stacks import call_stacks
from .._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .._common.process.made_once import made_once
from .._common.torch.optimizer_steps import after_each_step
from .._common.torch.storages import after_death
from ..devices import find_devices
from ..errors import HistoryError
from ..simulation.inspect import Machine, active
from .cuda_history import MOST_EVENTS, CudaHistory, is_recorded
from .holders import PeakHolders, peak_holders
from .live_blocks import PeakBlocks
from .model import HOST, AllocationHistory, DeviceHistory, Frame, Stack, UsedBlock, device_name
from .peak import Peak
from .sources import CpuBlocks, FollowedSource, SimulatedBlocks

NOTHING_RECORDED: Final = (
    "nothing was recorded: the profiler was never on while a simulated GPU, or the tensors of the "
    "host where there is no GPU, took memory"
)

NOTHING_TAKEN: Final = "nothing was recorded: no GPU took memory while the profiler was on"

NOT_ASKED_FOR: Final = (
    "nothing was recorded: on a GPU PyTorch records the stacks of allocations only on request, "
    "LineProfiler(..., history=True)"
)


_REAL_GPUS: Final = 0
"""Stands for the ``id`` of their source."""

_Peaks = dict[FollowedSource, dict[int, PeakBlocks]]
"""The peaks of the devices of each source that a recording uses."""


class Recording:
    """The recording of one profiler, over all the times that it is on."""

    def __init__(
        self, device: int | None = None, *, history: bool = False, history_max: int | None = None
    ) -> None:
        self._device = device
        self._keeps_history = history
        self._most_events = history_max
        self._is_on = False
        self._peaks: _Peaks = {}
        self._on: list[FollowedSource] = []
        self._finished: dict[int, PeakHolders] = {}
        self._histories: dict[int, AllocationHistory] = {}  # by ``id`` of the source
        self._cuda: CudaHistory | None = None
        self._steps: list[int] = []
        self._following_steps = ExitStack()
        after_death(self, partial(_leave, self._peaks))

    def begin(self) -> None:
        with uninterrupted(*STANDARD_SIGNALS):
            self._begin()

    def _begin(self) -> None:
        if self._is_on:
            return
        self._is_on = True
        if self._keeps_history:
            self._following_steps.enter_context(after_each_step(self._step_ended))
        active.observers.append(self._simulation_changes)
        if active.machine is not None:
            if self._device != HOST:
                self._follow(_source_of(active.machine))
                return
        elif _has_gpu() and self._device != HOST:
            if self._keeps_history and torch.cuda.is_available():
                self._cuda = CudaHistory(self._most_events or MOST_EVENTS)
                self._cuda.begin()
            return
        self._follow(_host())

    def end(self) -> None:
        """Record no more; what was recorded stays."""
        with uninterrupted(*STANDARD_SIGNALS):
            self._end()

    def _end(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        self._following_steps.close()
        active.observers.remove(self._simulation_changes)
        for peaks in self._peaks.values():
            for peak in peaks.values():
                peak.is_on = False
        while self._on:
            self._on.pop().switch_off()
        cuda, self._cuda = self._cuda, None
        if cuda is not None:
            self._keep_cuda_history(cuda.end())

    def _keep_cuda_history(self, history: AllocationHistory) -> None:
        """Keep the events of real GPUs; of each device the highest peak stays."""
        self._histories[_REAL_GPUS] = history
        for device in history.used_devices():
            if self._device in (None, device):
                holders = peak_holders(history, device)
                if _is_highest(holders.peak.active, device, self._finished):
                    self._finished[device] = holders

    def _read_cuda_history(self) -> None:
        if self._cuda is not None:
            self._keep_cuda_history(self._cuda.so_far())

    def forget(self) -> None:
        """Give up what was recorded, after ``end``."""
        _leave(self._peaks)
        self._finished.clear()
        self._histories.clear()
        self._steps.clear()

    def peak_holders(self, device: int | None = None) -> PeakHolders:
        holders = self._found()
        if device is not None:
            if device not in holders:
                recorded = ", ".join(device_name(index) for index in sorted(holders)) or "nothing"
                raise HistoryError(f"{device_name(device)} was not recorded: there is {recorded}")
            return holders[device]
        used = [
            device_holders
            for device_holders in holders.values()
            if device_holders.peak.active or device_holders.peak.device != HOST
        ]
        if not used:
            raise HistoryError(self._why_nothing())
        return max(used, key=lambda device_holders: device_holders.peak.active)

    def all_peak_holders(self) -> dict[str, PeakHolders]:
        by_device = sorted(self._found().items())
        return {
            device_name(device): holders for device, holders in by_device if holders.peak.active
        }

    def _why_nothing(self) -> str:
        if not _has_gpu():
            return NOTHING_RECORDED
        return NOTHING_TAKEN if self._keeps_history else NOT_ASKED_FOR

    def _found(self) -> dict[int, PeakHolders]:
        self._read_cuda_history()
        holders = self._finished.copy()
        for followed in self._peaks:
            self._add_holders(holders, followed)
        return holders

    def _add_holders(self, holders: dict[int, PeakHolders], followed: FollowedSource) -> None:
        """Add those of the devices of a source; of each device the highest peak stays."""
        for device, peak in self._peaks[followed].items():
            if _is_highest(peak.highest, device, holders):
                holders[device] = _holders(followed, device, peak)

    def history(self) -> AllocationHistory:
        """All events, from the first time that this was on."""
        # Of several simulations this is the last one; that of the host counts where there was none.
        if not self._keeps_history:
            raise HistoryError("the events were not kept: ask for them with history=True")
        self._read_cuda_history()
        for followed in self._peaks:
            self._keep_history(followed)
        histories = [*self._histories.values()]
        if not histories:
            raise HistoryError(self._why_nothing())
        of_gpus = [
            history
            for history in histories
            if any(device.device != HOST for device in history.devices)
        ]
        return replace((of_gpus or histories)[-1], steps=tuple(self._steps))

    def _keep_history(self, followed: FollowedSource) -> None:
        devices, numbers = [], _Numbers()
        for device, peak in self._peaks[followed].items():
            live = followed.live[device]
            if live.log is None:
                continue
            in_use = live.blocks()
            categories = followed.categories(in_use)
            live_blocks = [(block, categories[block]) for block in in_use]
            kept = live.log.settled(live_blocks, numbers.of, peak.first)
            initial = peak.initial if kept.initial is None else kept.initial
            devices.append(
                DeviceHistory(
                    *(device, kept.events, followed.segments(device), initial),
                    is_rounded=device != HOST,
                    dropped=kept.dropped,
                )
            )
        # An earlier source, now gone, may have had this id.
        self._histories.pop(id(followed), None)
        self._histories[id(followed)] = AllocationHistory(
            devices, numbers.stacks, followed.settings()
        )

    def _step_ended(self, _optimizer: torch.optim.Optimizer) -> None:
        self._steps.append(time_ns() // 1000)
        most = self._most_events
        if most is not None and len(self._steps) > 2 * most:
            del self._steps[:-most]  # those that are left cover more events than are kept

    def _follow(self, followed: FollowedSource) -> None:
        if followed not in self._peaks:
            self._peaks[followed] = {}
            followed.use()
        self._on.append(followed)
        followed.switch_on()
        for index, live in followed.live.items():
            if self._device in (None, index):
                peaks = self._peaks[followed]
                if index not in peaks:
                    initial = followed.segments(index) if self._keeps_history else ()
                    peaks[index] = PeakBlocks(live, initial)
                live.begin_peak(peaks[index])
                if self._keeps_history:
                    followed.begin_log(index, peaks[index].initial, self._most_events)

    def _simulation_changes(self, machine: Machine, is_on: bool) -> None:
        if self._device == HOST:
            return
        followed = _source_of(machine)
        if is_on:
            self._follow(followed)
        elif followed in self._on:
            self._finish(followed)

    def _finish(self, followed: FollowedSource) -> None:
        """A simulation has ended: of its GPUs, only the peaks stay, and of each the highest."""
        self._on.remove(followed)
        followed.switch_off()
        self._add_holders(self._finished, followed)
        if self._keeps_history:
            self._keep_history(followed)
        _leave({followed: self._peaks.pop(followed)})


def live_holders(device: int = 0) -> PeakHolders | None:
    """The holders of a GPU's memory now, such as when it runs out."""
    # Where a profiler is on, the blocks have their lines, and those of simulated GPUs their
    # modules. None for a real GPU whose history PyTorch does not record.
    machine = active.machine
    if machine is None:
        return _live_holders_of_cuda(device) if is_recorded() else None
    followed = _source_of(machine)
    followed.use()
    try:
        live = followed.live.get(device)
        if live is None:
            return None
        now = PeakBlocks(live)
        now.set_peak(live.active, live.events - 1)
        return _holders(followed, device, now)
    finally:
        followed.leave()


def _live_holders_of_cuda(device: int) -> PeakHolders | None:
    history = CudaHistory().so_far()
    if device not in history.used_devices():
        return None
    device_history = history.of_device(device)
    blocks = tuple(block for segment in device_history.segments for block in segment.blocks)
    active_bytes = sum(block.size for block in blocks)
    reserved, events = (
        sum(segment.size for segment in device_history.segments),
        len(device_history.events),
    )
    now = Peak(device, active_bytes, reserved, events - 1, events, blocks)
    return PeakHolders(now, history.stacks)


def _holders(followed: FollowedSource, device: int, peak: PeakBlocks) -> PeakHolders:
    blocks, active_bytes, reserved, event = peak.moment()
    categories = followed.categories(blocks)
    live, number_of = followed.live[device], call_stacks.number_of
    call_stacks.read()
    numbers = _Numbers()
    described = tuple(
        UsedBlock(
            block.address,
            block.size,
            block.requested,
            numbers.of(number) if (number := number_of(block)) else None,
            0 if block.forward is None else numbers.of(number_of(block.forward)),
            categories[block],
            block.module,
        )
        for block in blocks
    )
    before, events = event - peak.first, live.events - peak.first
    moment = Peak(
        *(device, active_bytes, reserved, before, events, described), private=peak.private
    )
    return PeakHolders(moment, numbers.stacks)


class _Numbers:
    """Numbers for the stacks that some blocks have, from 1 on."""

    def __init__(self) -> None:
        self.stacks: list[Stack] = [()]
        self._numbers: dict[int, int] = {0: 0}

    def of(self, number: int) -> int:
        """The number for the stack that has a number in ``call_stacks``."""
        own_number = self._numbers.get(number)
        if own_number is None:
            own_number = self._numbers[number] = len(self.stacks)
            places = call_stacks.places_of(number)
            self.stacks.append(tuple(Frame(*place) for place in places))
        return own_number


def _is_highest(active: int, device: int, highest: Mapping[int, PeakHolders]) -> bool:
    return device not in highest or active > highest[device].peak.active


def _leave(all_peaks: _Peaks) -> None:
    """Follow no more what one recording has used."""
    with uninterrupted(*STANDARD_SIGNALS):
        while all_peaks:
            followed, peaks = all_peaks.popitem()
            for device, peak in peaks.items():
                followed.live[device].drop_peak(peak)
            followed.leave()


def _source_of(machine: Machine) -> FollowedSource:
    if machine.recorder is None:
        machine.recorder = SimulatedBlocks(machine)
    followed: FollowedSource = machine.recorder
    return followed


@made_once
def _host() -> FollowedSource:
    return CpuBlocks()


def _has_gpu() -> bool:
    return find_devices()[0].name != "cpu"
