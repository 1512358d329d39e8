"""A device: counters, peaks, capacity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from ..records import Approximation, DeviceInfo, FilesOfRun, PeakShare

if TYPE_CHECKING:
    from ..simulation.inspect import Bounds, Generations

Stats = dict[str, Any]
"""Counters, nested as ``torch.cuda.memory_stats_as_nested_dict`` nests them:
group -> pool -> metric -> bytes or count."""


def reserved_bytes(stats: Stats) -> int:
    return int(stats.get("reserved_bytes", {}).get("all", {}).get("current", 0))


def private_bytes(stats: Stats) -> int:
    """Bytes that private pools hold, such as those of CUDA graphs; releases before 2.11 tell 0."""
    pools = stats.get("reserved_bytes_by_private_pools", {}).values()
    return sum(int(pool["all"]["current"]) for pool in pools)


Approximations = Mapping[Hashable, Approximation]
"""Approximations of a simulated device so far; each entry only grows. Two devices that share an
entry, as those of one simulation do, have it under the same key."""

NO_APPROXIMATIONS: Approximations = {}


def no_approximations() -> Approximations:
    return NO_APPROXIMATIONS


class ProgramView(Protocol):
    """Answers the program's own questions about a device whose peaks a tracker owns."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held around each answer."""

    def as_program_reads(self, stats: Stats) -> Stats:
        """Counters just read, with the peaks that the program would see without the tracker."""

    def program_resets(self) -> bool:
        """The program resets its peaks; False if the device is to be reset as well."""


class Device(Protocol):
    """A source of numbers.

    What it does by itself is right for hardware: nothing is approximated, and the allocator counts
    whether anybody reads or not.
    """

    name: str  # torch's, such as ``cuda:0``

    approximations: Callable[[], Approximations] = staticmethod(no_approximations)
    """Gives the approximations so far: the very same object until there are more."""

    @property
    def info(self) -> DeviceInfo:
        """The device as reports name it."""

    def stats(self) -> Stats:
        """Its counters now, past any ``ProgramView``; empty while nothing was ever allocated."""

    def reset_peaks(self) -> None:
        """Set every peak to its current value."""

    def capacity(self) -> int:
        """Bytes that it has; 0 if it does not tell."""

    def taken(self) -> int | None:
        """Bytes of it that this process's allocator cannot have: of the context and of others.

        None if it does not tell.
        """

    def context(self) -> int | None:
        """Those of them that the context takes; None where nothing tells them from the others."""
        return None

    def nccl(self) -> Bounds | None:
        """Bytes of it that NCCL takes, an estimate; None where the driver counts them itself."""
        return None

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """Raise peaks, nested as ``stats``; False if this kind of device cannot do that."""
        return False

    def install_view(self, view: ProgramView) -> None:
        """Let a view answer the program's own reads and resets of peaks; again has no effect."""
        return

    def remove_view(self, view: ProgramView) -> None:
        """Let torch answer again."""
        return

    def generations(self) -> Generations | None:
        """Bytes in use by the time of their allocation; None on hardware, which has totals only."""
        return None

    def peak_share(self) -> PeakShare | None:
        """The certainty of its peak; None on hardware, which measures."""
        return None

    def files(self) -> FilesOfRun | None:
        """Files and commands of a dry run; None for other runs."""
        return None

    def unmet_assumptions(self) -> tuple[str, ...]:
        """Sizes that the user gave a dry run, and that nothing asked for."""
        return ()

    def start_tracking(self) -> None:
        """A reader begins in this thread; what costs the program something starts here."""
        return

    def stop_tracking(self) -> None:
        """A reader of this thread has gone."""
        return
