"""The results of ``fit``: finished data for the renderers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..records import Approximation, ApproximationKind
from .trial import Ending, Trial
from .verdict import Verdict

_HARMLESS = ("0", "equal")
"""Value that is assumed for data that decides no shape by itself."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """The verdicts on a program for several GPUs."""

    program: str
    verdicts: tuple[Verdict, ...]  # those that are known, by the memory of the GPU
    unknown: tuple[str, ...] = ()
    num_gpus: int = 1
    steps: int | None = None  # optimizer steps that were asked for; None for until the peak repeats

    @property
    def fitting(self) -> tuple[Verdict, ...]:
        """Those of the GPUs that the program fits on."""
        return tuple(one for one in self.verdicts if one.fits)

    @property
    def error(self) -> str:
        """The traceback of the program's error on a GPU; empty if it ran on all of them."""
        return next((one.trial.error for one in self.verdicts if one.fits is None), "")

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The runs that the verdicts are of."""
        return tuple({id(one.trial): one.trial for one in self.verdicts}.values())

    @property
    def approximations(self) -> tuple[Approximation, ...]:
        """Approximations of all runs, each once."""
        found = {one.key: one for trial in self.trials for one in trial.approximations}
        return tuple(found.values())

    @property
    def unsettled(self) -> tuple[Verdict, ...]:
        """Those of runs whose peak did not repeat."""
        return tuple(one for one in self.verdicts if one.trial.ending is Ending.UNSETTLED)


def fit_report(
    program: str,
    names: Sequence[str],
    known: Iterable[tuple[int, Verdict]],
    num_gpus: int = 1,
    steps: int | None = None,
) -> FitReport:
    """Put verdicts in the order of the GPUs' memory."""
    found = dict(known)
    ordered = sorted(found, key=lambda index: (found[index].capacity, index))
    unknown = tuple(name for index, name in enumerate(names) if index not in found)
    verdicts = tuple(found[index] for index in ordered)
    return FitReport(program, verdicts, unknown, num_gpus, steps)


def mark(trial: Trial) -> str:
    """``?`` for a peak that is a lower bound or rests on assumed shapes, ``~`` for an estimate."""
    kinds = {
        one.kind
        for one in trial.approximations
        if one.kind is not ApproximationKind.ASSUMED or one.assumption not in _HARMLESS
    }
    return "" if not kinds else "~" if kinds == {ApproximationKind.ESTIMATED} else "?"
