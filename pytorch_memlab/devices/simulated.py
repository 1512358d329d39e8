"""A simulated GPU, asked directly: its allocator is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import DeviceInfo, PeakShare, merge_approximations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..simulation.inspect import KeptFiles, SimulatedGPU
    from .device import Stats
    from .simulated_approximations import SimulatedApproximations


class SimulatedDevice:
    """One GPU of the simulation.

    Args:
        gpu: which.
        approximations: what it did without knowing all of it.
        kept_files: the files that the run did not write, None if it writes all.
    """

    def __init__(
        self,
        gpu: SimulatedGPU,
        approximations: SimulatedApproximations,
        kept_files: KeptFiles | None,
    ) -> None:
        self._gpu = gpu
        self._kept_files = kept_files
        self.approximations = approximations.now
        self.name = f"cuda:{gpu.index}"
        self._info = DeviceInfo(self.name, gpu.model.name, simulated=True)

    @property
    def info(self) -> DeviceInfo:
        """The model that it stands for."""
        return self._info

    def stats(self) -> Stats:
        """Counters of the modelled allocator."""
        stats: Stats = self._gpu.locked(self._gpu.allocator.memory_stats)
        return stats

    def reset_peaks(self) -> None:
        """Set the allocator's peaks to the current values."""
        self._gpu.locked(self._gpu.allocator.reset_peak_stats)

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """Put the peaks back."""
        self._gpu.locked(self._gpu.allocator.restore_peaks, peaks)
        return True

    def capacity(self) -> int:
        """Bytes on the card that it stands for."""
        return self._gpu.model.total_memory

    def taken(self) -> int:
        """Bytes of the context and of other processes."""
        return self._gpu.driver.context + self._gpu.driver.other_processes

    def context(self) -> int:
        """Bytes of the context."""
        return self._gpu.driver.context

    def notes(self) -> tuple[str, ...]:
        """Which files a dry run did not write."""
        note = "" if self._kept_files is None else self._kept_files.note()
        return (note,) if note else ()

    def peak_share(self) -> PeakShare:
        """What it held at its peak, and how much of that no recording confirms."""
        active, estimated = self._gpu.peak_share()
        return PeakShare(
            self.name, active, estimated, merge_approximations(self.approximations().values())
        )

    def attach(self) -> None:
        """Counters are there anyway."""

    def detach(self) -> None:
        """Counters are there anyway."""
