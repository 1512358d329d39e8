"""The sections that ``run --report`` and ``run --leaks`` add to the report."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from ..._common.text.prose_size import counted
from ..._common.torch.optimizer_steps import after_each_step
from ...errors import HistoryError
from ...records import Section

if TYPE_CHECKING:
    import torch

    from ...history.holders import PeakHolders
    from ...reporter.leaks import Growth, LeakWatch
    from ...reporter.memory_snapshot import MemorySnapshot, Reconciliation

_WORKSPACES = "kernels' workspaces"
_GRAPHS = "reserved by CUDA graphs"
_AT_THE_PEAK = (
    "at the peak: whole blocks, so that rounding is in each category",
    "at the peak: not known on a real GPU",
)


class CategoryReport:
    """The memory by category when a run ends, as ``MemReporter`` finds it, and at its peak."""

    def start(self, process: ExitStack) -> None:
        from ...history.recorder import Recording

        self._recording = Recording()
        process.callback(self._recording.end)
        self._recording.begin()

    def sections(self) -> tuple[Section, ...]:
        """One for each device whose memory was used."""
        from ...mem_reporter import MemReporter

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
        try:
            at_peak = _at_peak(self._recording.peak_holders(record.device.index))
        except HistoryError:
            rows = tuple((name, (size,)) for name, size in at_end.items())
            return Section(title, ("at the end",), rows, _AT_THE_PEAK[1:])
        names = list(at_end)
        place = names.index("rounding")  # the names of the peak alone come before it
        names[place:place] = [name for name in at_peak if name not in at_end]
        both = tuple((name, (at_end.get(name), at_peak.get(name))) for name in names)
        return Section(title, ("at the end", "at the peak"), both, _AT_THE_PEAK[:1])


def _at_end(snapshot: MemorySnapshot, record: Reconciliation) -> Iterator[tuple[str, int | None]]:
    yield from snapshot.totals(record.device).items()
    yield "rounding", record.rounding
    yield _WORKSPACES, record.workspaces
    yield "unknown", record.unknown
    yield "= allocated", record.allocated
    if record.graphs:
        yield _GRAPHS, record.graphs
    yield "cached", record.cached
    yield "= reserved", record.reserved


def _at_peak(holders: PeakHolders) -> dict[str, int]:
    peak = holders.peak
    graphs = peak.private.unused
    sizes = {share.name: share.size for share in holders.by_category()}
    if "workspaces" in sizes:
        sizes[_WORKSPACES] = sizes.pop("workspaces")
    return {
        **sizes,
        "= allocated": peak.active,
        **({_GRAPHS: graphs} if graphs else {}),
        "cached": peak.reserved - peak.active - graphs,
        "= reserved": peak.reserved,
    }


_THIRD: Final = 3
"""The next look comes after a third more steps, which is after each of the first six: looking takes
little of the time of a long run."""

_TITLE = "memory that grows from step to step"


class StepLeaks:
    """Looks at the living tensors after the steps of an optimizer."""

    # With several optimizers, a step ends where the one that stepped first steps again.

    def __init__(self) -> None:
        self._looked_at: list[int] = []
        self._steps = 0
        self._next_look = 1
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None

    def start(self, process: ExitStack) -> None:
        from ...mem_reporter import MemReporter

        self._watch: LeakWatch[object] = MemReporter().leaks(())
        process.enter_context(after_each_step(self._after))

    def sections(self) -> tuple[Section, ...]:
        """The variables that grew, or a note that none did."""
        steps = counted(self._steps, "optimizer step")
        if len(self._looked_at) < self._watch.fewest:
            few = f"{steps}: {self._watch.fewest} are needed to tell what grows"
            way = "write `for batch in MemReporter().leaks(batches)` in the program"
            return (Section(_TITLE, notes=(f"{few}; for a loop without an optimizer,", way)),)
        growing = self._watch.growing
        if not growing:
            return (Section(_TITLE, notes=(f"no growth over {steps}",)),)
        first, last = self._looked_at[0], self._looked_at[-1]
        rows = []
        for growth in growing:
            by_step = round((growth.sizes[-1] - growth.sizes[0]) / (last - first))
            rows.append((_name(growth), (by_step, growth.sizes[-1])))
        until = "" if last == self._steps else f", up to step {last:,}"
        return (Section(f"{_TITLE}, {steps}{until}", ("by each step", "now"), tuple(rows)),)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._steps += 1
        if self._steps == self._next_look:
            self._watch.look()
            self._looked_at.append(self._steps)
            self._next_look += max(1, self._steps // _THIRD)


def _name(growth: Growth) -> str:
    line = str(growth.line) if growth.line else ""
    if not line or line in growth.name:
        return f"{growth.device} {growth.name}"
    return f"{growth.device} {growth.name} ({line})"
