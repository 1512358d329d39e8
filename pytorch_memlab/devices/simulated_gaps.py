"""What a simulated GPU did without knowing all of it, as records name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import Gap, GapKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..simulation.dry_run.data_dependent_reads import ValueReads
    from ..simulation.machine.approximations import OpCount, OpGaps
    from .device import Gaps


class SimulatedGaps:
    """The gaps of one simulated GPU so far.

    Reads of values are those of the whole machine: what each of its GPUs does next rests on them.

    Args:
        ops: what was counted on the GPU.
        reads: of the machine, None if its ops compute.
    """

    def __init__(self, ops: OpGaps, reads: ValueReads | None) -> None:
        self._ops = ops
        self._reads = reads
        self._events = 0
        self._gaps: dict[Hashable, Gap] = {}

    def now(self) -> Gaps:
        """All so far.

        Returns:
            the very same object until there are more.
        """
        events = self._ops.events + (0 if self._reads is None else self._reads.events)
        if events != self._events:
            gaps = self._gaps.copy()
            self._add_ops(gaps, GapKind.UNMODELLED, self._ops.unmodelled)
            self._add_uncounted(gaps)
            self._add_ops(gaps, GapKind.ESTIMATED, self._ops.estimated)
            self._add_reads(gaps)
            self._events, self._gaps = events, gaps
        return self._gaps

    def _add_ops(
        self, gaps: dict[Hashable, Gap], kind: GapKind, counts: dict[str, OpCount]
    ) -> None:
        for op, count in counts.copy().items():
            key = (self._ops, kind, op)
            if key not in gaps or gaps[key].calls != count.calls:
                gaps[key] = Gap(kind, _name(op), count.calls, count.nbytes)

    def _add_uncounted(self, gaps: dict[Hashable, Gap]) -> None:
        for subject, count in self._ops.uncounted.copy().items():
            key = (self._ops, GapKind.UNCOUNTED, subject)
            if key not in gaps or gaps[key].calls != count.calls:
                op, unknown = subject
                gaps[key] = Gap(GapKind.UNCOUNTED, _name(op), count.calls, unknown=unknown)

    def _add_reads(self, gaps: dict[Hashable, Gap]) -> None:
        for read in () if self._reads is None else self._reads.all():
            key = (self._reads, read.op, read.filename, read.line)
            if key not in gaps or gaps[key].calls != read.count:
                gaps[key] = Gap(
                    GapKind.ASSUMED,
                    read.name,
                    read.count,
                    assumption=read.assumption,
                    place=f"{read.filename}:{read.line}",
                )


def _name(op: str) -> str:
    """An op without its overload, and without the namespace of torch's own.

    Ops that take functions have neither.

    >>> _name("aten.linalg_qr.default"), _name("torchvision.nms.default"), _name("flex_attention")
    ('linalg_qr', 'torchvision::nms', 'flex_attention')
    """
    namespace, dot, rest = op.partition(".")
    name = rest.partition(".")[0]
    return name if namespace == "aten" else f"{namespace}::{name}" if dot else op
