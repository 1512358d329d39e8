"""The base of all causes, and the remedy that a cause finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from .._common.text.prose_size import prose_size
from ..fitting.change import Change
from ..history.out_of_memory import OutOfMemory
from .around_program import AroundProgram


class Basis(Enum):
    """The way in which the bytes of a remedy are known."""

    CHECKED = "checked"  # the recorded requests were made again with the remedy
    COMPUTED = "computed"  # from the blocks in use
    ESTIMATED = "estimated"


class Results(Enum):
    """The difference that a remedy makes to what the program computes."""

    SAME = "same results by its formula"
    ROUNDING = "same formula, other rounding"
    BFLOAT16 = "results rounded to bfloat16"
    MEAN_OF_PARTS = "the mean of the parts' losses, another one where parts differ in size"
    UNKNOWN = ""

    @property
    def tolerance(self) -> float:
        """The part of a value by which it may differ, and the model be the same."""
        return 0.05 if self is Results.BFLOAT16 else 1e-3


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way out of one cause in one program."""

    cause: str  # name of the cause
    size: int  # bytes that it frees at least
    why: str  # one sentence without a full stop
    code: tuple[str, ...]  # lines that a person writes into the program or the shell
    basis: Basis = Basis.COMPUTED
    effect: str = ""  # what is known of the remedy, such as how it was checked
    # how a trial makes it around the unmodified program; None if it cannot be tried
    change: Change | None = None
    results: Results = Results.UNKNOWN
    # that is tried where this one makes the program fail, or does not help
    otherwise: Remedy | None = None


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A change that ``fit --try`` makes to any program."""

    name: str
    make: Callable[..., AroundProgram]
    value: str = ""  # that it is made with; empty for none
    unit: str = ""  # of a value that people may give after the name and ``=``; empty for none
    more: tuple[str, ...] = ()  # other values that it is made with where none is given
    is_by_default: bool = True  # False for one that is tried only where it is named

    def made(self, value: str) -> AroundProgram:
        return self.make(value) if value else self.make()


class Cause(ABC):
    """A cause of high memory: how it is recognised, what to do, and the words for both."""

    name: ClassVar[str]
    """The name of the cause in reports and files."""
    order: ClassVar[int]
    """Causes are looked for from the lowest number to the highest, the most specific ones first."""
    scales_with_batch: ClassVar[bool] = False
    """True if a smaller batch may remedy it too: the program may be right as it is."""
    is_last_resort: ClassVar[bool] = False
    """True for what is named only where nothing is wrong with the program."""

    has_edit: ClassVar[bool] = True
    """True if a trial can make what the cause advises."""

    results: ClassVar[Results] = Results.UNKNOWN
    """The difference that the remedy makes to results, where its kind alone tells it."""
    tried_by_name: ClassVar[tuple[NamedChange, ...]] = ()
    """Changes that ``fit --try`` makes, also where the cause does not stand out."""

    @property
    def trial_name(self) -> str:
        """The name by which ``fit --try`` tries its edit: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        """The remedy for a program; None if this is not the cause."""

    def found(
        self,
        size: int,
        why: str,
        *code: str,
        basis: Basis = Basis.COMPUTED,
        effect: str = "",
        change: Change | None = None,
    ) -> Remedy:
        return Remedy(self.name, size, why, code, basis, effect, change, self.results)


def at_line(number: int) -> str:
    """A line in the middle of a sentence; nothing for a line that is not known.

    >>> at_line(7), at_line(0)
    (' (line 7)', '')
    """
    return f" (line {number})" if number else ""


def saves(size: int) -> str:
    """The bytes that a remedy frees, as the end of a sentence."""
    return f"frees at least {prose_size(size)}"
