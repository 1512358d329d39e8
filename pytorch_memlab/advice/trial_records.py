"""A program that can run again, and what came of running it with remedies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..fitting.target import Target
from ..fitting.trial import Settings
from ..fitting.verdict import PartSeen
from ..simulation.inspect import GPU
from .cause import Remedy
from .compared_values import Comparison


@dataclass(frozen=True, slots=True)
class TrialProgram:
    """A program that can run again, as it was started."""

    target: Target
    gpu: GPU
    settings: Settings
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    computes: bool = False  # whether it ran with values


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a program with one remedy."""

    before: int  # bytes in use at the peak without the remedy, on a GPU without a limit
    after: int  # the same with the remedy
    fits: bool  # as far as it ran
    is_whole: bool  # whether it ran to its end; otherwise its loops ended early
    values: Comparison | None = None  # None if they were not compared
    before_is_exact: bool = True  # False if the end of the program as it is may need more
    # the part that ran with the remedy, if its end may need more than ``after``
    seen: PartSeen | None = None

    @property
    def is_exact(self) -> bool:
        """True if both peaks are those of the program's end."""
        return self.before_is_exact and self.seen is None

    @property
    def saved(self) -> int:
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Together:
    """Several remedies at once."""

    numbers: tuple[int, ...]  # of the remedies, from 1
    result: Result


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies for a program, the best one first, and what came of trying them."""

    remedies: tuple[Remedy, ...]
    results: tuple[Result | None, ...]  # of each remedy; None if it was not tried
    untried: str = ""  # why nothing was tried; empty if something was
    together: Together | None = None  # where none is enough alone, and several were tried
