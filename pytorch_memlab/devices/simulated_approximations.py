"""Approximations of a simulated GPU, as records name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import Approximation, ApproximationKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..simulation.inspect import DataDependentReads, OpApproximations, OpCount
    from .device import Approximations


class SimulatedApproximations:
    """The approximations of one simulated GPU so far.

    Data-dependent reads are those of the whole simulation: all of its GPUs rest on them.
    """

    def __init__(self, ops: OpApproximations, reads: DataDependentReads | None) -> None:
        self._ops = ops
        self._reads = reads
        self._events = 0
        self._approximations: dict[Hashable, Approximation] = {}

    def now(self) -> Approximations:
        """All so far: the very same object until there are more."""
        events = self._ops.events + (0 if self._reads is None else self._reads.events)
        if events != self._events:
            approximations = self._approximations.copy()
            self._add_ops(approximations, ApproximationKind.UNMODELLED, self._ops.unmodelled)
            self._add_uncounted(approximations)
            self._add_ops(approximations, ApproximationKind.ESTIMATED, self._ops.estimated)
            self._add_reads(approximations)
            self._events, self._approximations = events, approximations
        return self._approximations

    def _add_ops(
        self,
        approximations: dict[Hashable, Approximation],
        kind: ApproximationKind,
        counts: dict[str, OpCount],
    ) -> None:
        for op, count in counts.copy().items():
            key = (self._ops, kind, op)
            if key not in approximations or approximations[key].calls != count.calls:
                approximations[key] = Approximation(kind, _name(op), count.calls, count.nbytes)

    def _add_uncounted(self, approximations: dict[Hashable, Approximation]) -> None:
        for subject, count in self._ops.uncounted.copy().items():
            key = (self._ops, ApproximationKind.UNCOUNTED, subject)
            if key not in approximations or approximations[key].calls != count.calls:
                op, unknown = subject
                approximations[key] = Approximation(
                    ApproximationKind.UNCOUNTED, _name(op), count.calls, unknown=unknown
                )

    def _add_reads(self, approximations: dict[Hashable, Approximation]) -> None:
        for read in () if self._reads is None else self._reads.all():
            key = (self._reads, read.op, read.filename, read.line)
            if key not in approximations or approximations[key].calls != read.count:
                approximations[key] = Approximation(
                    ApproximationKind.ASSUMED,
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
