"""``run --report``: the memory by category at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytorch_memlab.records import Section

if TYPE_CHECKING:
    from pytorch_memlab.reporter.records import Reconciliation
    from pytorch_memlab.reporter.snapshot import MemorySnapshot


class CategoryReport:
    """What ``MemReporter`` finds alive when a run ends, by category."""

    def start(self, process: ExitStack) -> None:
        """Nothing has to be watched."""

    def sections(self) -> tuple[Section, ...]:
        """One for each device whose memory was used."""
        from pytorch_memlab.mem_reporter import MemReporter

        snapshot = MemReporter().snapshot()
        return tuple(
            Section(f"memory by category: {record.device}", ("at the end",), tuple(rows))
            for record in snapshot.reconciliations
            if (rows := list(_rows(snapshot, record)))
        )


def _rows(
    snapshot: MemorySnapshot, record: Reconciliation
) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    if not record.reserved:
        return
    for category, nbytes in snapshot.totals(record.device).items():
        yield category, (nbytes,)
    yield "rounding", (record.rounding,)
    yield "kernels' workspaces", (record.workspaces,)
    yield "unknown", (record.unknown,)
    yield "= allocated", (record.allocated,)
    yield "cached", (record.cached,)
    yield "= reserved", (record.reserved,)
