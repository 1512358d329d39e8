"""A simulated GPU, asked directly."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from .._common.process.ipython import source_name
from ..records import (
    NOT_COUNTED,
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FilesOfRun,
    PeakShare,
    merge_approximations,
    uncounted_at_most,
)
from ..simulation.inspect import (
    AssumedSizes,
    Bounds,
    DataDependentReads,
    Generations,
    KeptFiles,
    OpApproximations,
    SimulatedGPU,
)
from . import program_view
from .device import Approximations, Device, ProgramView, Stats


def files_of_run(kept_files: KeptFiles | None) -> FilesOfRun | None:
    """Files and commands of a dry run; None for other runs."""
    if kept_files is None:
        return None
    commands = kept_files.started_commands()
    return FilesOfRun(
        kept_files.paths(),
        tuple(name for name, is_refused in commands if not is_refused),
        tuple(name for name, is_refused in commands if is_refused),
    )


class SimulatedDevice(Device):
    """One GPU of the simulation."""

    def __init__(
        self,
        gpu: SimulatedGPU,
        approximations: SimulatedApproximations,
        kept_files: KeptFiles | None,
        assumed: AssumedSizes | None,
    ) -> None:
        self._gpu = gpu
        self._kept_files = kept_files
        self._assumed = assumed
        self.approximations = approximations.now
        self.name = f"cuda:{gpu.index}"
        self._info = DeviceInfo(self.name, gpu.model.name, simulated=True)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def stats(self) -> Stats:
        stats: Stats = self._gpu.locked(self._gpu.allocator.memory_stats)
        return stats

    def reset_peaks(self) -> None:
        self._gpu.locked(self._gpu.allocator.reset_peak_stats)

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        self._gpu.locked(self._gpu.allocator.restore_peaks, peaks)
        return True

    def install_view(self, view: ProgramView) -> None:
        program_view.install(self._gpu.index, view)

    def remove_view(self, view: ProgramView) -> None:
        program_view.remove(self._gpu.index, view)

    def capacity(self) -> int:
        return self._gpu.model.total_memory

    def taken(self) -> int:
        return self._gpu.driver.context + self._gpu.driver.other_processes

    def context(self) -> int:
        return self._gpu.driver.context

    def nccl(self) -> Bounds:
        return self._gpu.nccl_memory()

    def generations(self) -> Generations:
        return self._gpu.allocator.generations

    def files(self) -> FilesOfRun | None:
        return files_of_run(self._kept_files)

    def unmet_assumptions(self) -> tuple[str, ...]:
        return () if self._assumed is None else self._assumed.unmet()

    def peak_share(self) -> PeakShare:
        active, estimated = self._gpu.peak_share()
        approximations = merge_approximations(self.approximations().values())
        has_bound = uncounted_at_most(approximations) is not None
        at_most = self._gpu.peak_at_most() if has_bound else None
        return PeakShare(self.name, active, estimated, approximations, at_most)


class SimulatedApproximations:
    """The approximations of one simulated GPU so far, as records name them."""

    # Data-dependent reads are those of the whole simulation: all of its GPUs rest on them.

    def __init__(self, ops: OpApproximations, reads: DataDependentReads | None) -> None:
        self._ops = ops
        self._reads = reads
        self._events = 0
        self._approximations: dict[Hashable, Approximation] = {}

    def now(self) -> Approximations:
        events = self._ops.events + (0 if self._reads is None else self._reads.events)
        if events != self._events:
            approximations = self._approximations
            changed = {
                key: Approximation(*fields)
                for key, fields in self._all()
                if key not in approximations or approximations[key].calls != fields[2]
            }
            self._events, self._approximations = events, approximations | changed
        return self._approximations

    def _all(self) -> Iterator[tuple[Hashable, tuple[Any, ...]]]:
        ops = self._ops
        for kind, counts in (
            (ApproximationKind.UNMODELLED, ops.unmodelled),
            (ApproximationKind.UNCOUNTED, ops.uncounted),
            (ApproximationKind.ESTIMATED, ops.estimated),
        ):
            for subject, count in counts.copy().items():
                op, unknown = (subject, "") if isinstance(subject, str) else subject
                bound = (count.at_most, count.gives_way) if kind in NOT_COUNTED else (None, False)
                named = (kind, _name(op), count.calls, count.nbytes, "", "", unknown)
                yield (ops, kind, subject), (*named, *bound)
        for read in () if self._reads is None else self._reads.all():
            place = f"{source_name(read.filename)}:{read.line}"
            kind = ApproximationKind(read.bound.value)
            fields = (kind, read.name, read.count, 0, read.assumption, place, "")
            key = (self._reads, read.op, read.bound, read.assumption, read.filename, read.line)
            yield key, fields


@functools.cache
def _name(op: str) -> str:
    """An op without its overload, and without the namespace of torch's own.

    >>> _name("aten.linalg_qr.default"), _name("torchvision.nms.default"), _name("flex_attention")
    ('linalg_qr', 'torchvision::nms', 'flex_attention')
    """
    # Ops that take functions have neither.
    namespace, dot, rest = op.partition(".")
    name = rest.partition(".")[0]
    return name if namespace == "aten" else f"{namespace}::{name}" if dot else op
