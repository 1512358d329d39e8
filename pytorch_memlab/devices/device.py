"""What the package asks of a device: counters, peaks, capacity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..records import Approximation

if TYPE_CHECKING:
    from ..records import DeviceInfo, PeakShare

Stats = dict[str, Any]
"""Counters, nested as ``torch.cuda.memory_stats_as_nested_dict`` nests them:
group -> pool -> metric -> bytes or count."""

Approximations = Mapping[Hashable, Approximation]
"""What a device did so far without knowing all of it; each entry only grows. Two devices that share
an entry, as those of one machine do, have it under the same key."""

NO_APPROXIMATIONS: Approximations = {}


class Device(Protocol):
    """Where numbers come from.

    Args:
        name: as torch names it, such as ``cuda:0``.
    """

    name: str

    @property
    def info(self) -> DeviceInfo:
        """What reports call it."""

    def stats(self) -> Stats:
        """Its counters now; empty while nothing was ever allocated."""

    def reset_peaks(self) -> None:
        """Set every peak to its current value."""

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """Raise peaks to values that they had before a reset.

        Args:
            peaks: nested as ``stats``; only ``peak`` is looked at.

        Returns:
            False if this kind of device cannot do that.
        """

    def capacity(self) -> int:
        """Bytes that it has."""

    def taken(self) -> int:
        """Bytes of it that this process's allocator cannot have: of the context and of others."""

    def context(self) -> int | None:
        """Those of them that the context takes; None where nothing tells them from the others."""

    @property
    def approximations(self) -> Callable[[], Approximations] | None:
        """Tells what it did so far without knowing all of it; None on hardware, which measures.

        It gives the very same object until there is more to tell.
        """

    def notes(self) -> tuple[str, ...]:
        """What reports say below their tables of what happened there."""

    @property
    def peak_share(self) -> Callable[[], PeakShare] | None:
        """Tells how well its peak is known; None on hardware, which measures."""

    def attach(self) -> None:
        """A reader begins in this thread; what costs the program something starts here."""

    def detach(self) -> None:
        """A reader of this thread has gone."""
