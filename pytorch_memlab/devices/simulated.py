"""A simulated GPU, asked directly: its allocator is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import DeviceInfo, UnmodelledOp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..simulation.kernels.unmodelled import Unmodelled
    from ..simulation.simulated_gpu import SimulatedGPU
    from .device import Stats


class SimulatedDevice:
    """One GPU of the simulation.

    Args:
        gpu: which.
        unmodelled: ops without an entry in the kernels' table, by their names with namespace and
            overload, as the machine counts them over all its GPUs.
    """

    def __init__(self, gpu: SimulatedGPU, unmodelled: dict[str, Unmodelled]) -> None:
        self._gpu = gpu
        self._unmodelled = unmodelled
        self.name = f"cuda:{gpu.index}"
        self._info = DeviceInfo(self.name, gpu.model.name, simulated=True)

    @property
    def info(self) -> DeviceInfo:
        """The model that it stands for."""
        return self._info

    def stats(self) -> Stats:
        """Counters of the modelled allocator."""
        stats: Stats = self._gpu.call("memory_stats")
        return stats

    def reset_peaks(self) -> None:
        """Set the allocator's peaks to the current values."""
        self._gpu.call("reset_peak_stats")

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """Put the peaks back."""
        self._gpu.call("restore_peaks", peaks)
        return True

    def capacity(self) -> int:
        """Bytes on the card that it stands for."""
        return self._gpu.model.total_memory

    def unmodelled(self) -> list[UnmodelledOp]:
        """Ops without an entry in the kernels' table, the largest results first."""
        merged: dict[str, UnmodelledOp] = {}
        for full, found in self._unmodelled.copy().items():
            name = full.removeprefix("aten.").partition(".")[0]
            before = merged.get(name, UnmodelledOp(name, 0, 0))
            merged[name] = UnmodelledOp(
                name, before.calls + found.calls, before.nbytes + found.nbytes
            )
        return sorted(merged.values(), key=lambda op: (-op.nbytes, op.name))

    def attach(self) -> None:
        """Counters are there anyway."""

    def detach(self) -> None:
        """Counters are there anyway."""
