"""``run --report``: the memory by category at the end of a run and at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytorch_memlab.records import Section

if TYPE_CHECKING:
    from pytorch_memlab.history.holders import PeakHolders
    from pytorch_memlab.reporter.records import Reconciliation
    from pytorch_memlab.reporter.snapshot import MemorySnapshot

_WORKSPACES = "kernels' workspaces"
_AT_THE_PEAK = (
    "at the peak: whole blocks, so that rounding is in each category",
    "at the peak: not known on a real GPU",
)


class CategoryReport:
    """The memory by category when a run ends, as ``MemReporter`` finds it, and at its peak."""

    def start(self, process: ExitStack) -> None:
        """Begin to follow the blocks in use."""
        from pytorch_memlab.history.recorder import Recording

        self._recording = Recording()
        self._recording.begin()
        process.callback(self._recording.end)

    def sections(self) -> tuple[Section, ...]:
        """One for each device whose memory was used."""
        from pytorch_memlab.mem_reporter import MemReporter

        self._recording.end()
        snapshot = MemReporter().snapshot()
        return tuple(
            self._section(snapshot, record)
            for record in snapshot.reconciliations
            if record.reserved
        )

    def _section(self, snapshot: MemorySnapshot, record: Reconciliation) -> Section:
        title = f"memory by category: {record.device}"
        at_end = dict(_at_end(snapshot, record))
        holders = self._holders(record.device.index)
        if holders is None:
            rows = tuple((name, (size,)) for name, size in at_end.items())
            return Section(title, ("at the end",), rows, _AT_THE_PEAK[1:])
        at_peak = _at_peak(holders)
        at_end = {name: at_end.get(name) for name in _in_order(at_end, at_peak)}
        both = tuple((name, (size, at_peak.get(name))) for name, size in at_end.items())
        return Section(title, ("at the end", "at the peak"), both, _AT_THE_PEAK[:1])

    def _holders(self, device: int) -> PeakHolders | None:
        from pytorch_memlab.errors import HistoryError

        try:
            return self._recording.peak_holders(device)
        except HistoryError:
            return None


def _at_end(snapshot: MemorySnapshot, record: Reconciliation) -> Iterator[tuple[str, int | None]]:
    yield from snapshot.totals(record.device).items()
    yield "rounding", record.rounding
    yield _WORKSPACES, record.workspaces
    yield "unknown", record.unknown
    yield "= allocated", record.allocated
    yield "cached", record.cached
    yield "= reserved", record.reserved


def _at_peak(holders: PeakHolders) -> dict[str, int]:
    peak = holders.peak
    sizes = {share.name: share.size for share in holders.by_category()}
    if "workspaces" in sizes:
        sizes[_WORKSPACES] = sizes.pop("workspaces")
    return {
        **sizes,
        "= allocated": peak.active,
        "cached": peak.reserved - peak.active,
        "= reserved": peak.reserved,
    }


def _in_order(at_end: dict[str, int | None], at_peak: dict[str, int]) -> list[str]:
    """The names of both, those of the peak alone before the rounding."""
    names = list(at_end)
    place = names.index("rounding")
    return [*names[:place], *(name for name in at_peak if name not in at_end), *names[place:]]
