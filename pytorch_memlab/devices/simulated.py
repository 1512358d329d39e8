"""A simulated GPU, asked directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import DeviceInfo, PeakShare, merge_approximations
from . import program_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..simulation.inspect import KeptFiles, SimulatedGPU
    from .device import ProgramView, Stats
    from .simulated_approximations import SimulatedApproximations


class SimulatedDevice:
    """One GPU of the simulation."""

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

    def install_view(self, view: ProgramView) -> None:
        """Let a view answer the program."""
        program_view.install(self._gpu.index, view)

    def remove_view(self, view: ProgramView) -> None:
        """Let the simulation answer again."""
        program_view.remove(self._gpu.index, view)

    def capacity(self) -> int:
        """Bytes on the GPU that it stands for."""
        return self._gpu.model.total_memory

    def taken(self) -> int:
        """Bytes of the context and of other processes."""
        return self._gpu.driver.context + self._gpu.driver.other_processes

    def context(self) -> int:
        """Bytes of the context."""
        return self._gpu.driver.context

    def kept_files(self) -> tuple[str, ...]:
        """Paths of the files that a dry run did not write."""
        return () if self._kept_files is None else self._kept_files.paths()

    def peak_share(self) -> PeakShare:
        """Its peak, and how much of that no recording confirms."""
        active, estimated = self._gpu.peak_share()
        return PeakShare(
            self.name, active, estimated, merge_approximations(self.approximations().values())
        )

    def start_tracking(self) -> None:
        """The allocator counts anyway."""

    def stop_tracking(self) -> None:
        """The allocator counts anyway."""
