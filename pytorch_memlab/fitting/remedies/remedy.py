"""What a remedy is: a change that is made around a program, and what it found there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..change import Change


class Outcome(Enum):
    """What became of a remedy in a program."""

    APPLIED = "applied"
    ALREADY_USED = "already used"
    DOES_NOT_APPLY = "does not apply"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of a file that become others.

    Args:
        file: path.
        first: number of the first line that is replaced.
        last: number of the last one; ``first - 1`` inserts before ``first``.
        lines: what stands there then, without line ends.
    """

    file: str
    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a remedy found in the program that it was applied to.

    Args:
        outcome: whether it was applied.
        reason: why it was not; empty if it was.
        code: how a person writes it, where the program is not known line by line.
        edits: how the program's own lines become; empty where they are not known.
    """

    outcome: Outcome
    reason: str = ""
    code: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


class Remedy(Change, ABC):
    """A change that is made around an unmodified program.

    Attributes:
        name: as the command line has it.
        what_it_changes: beside the memory, in a few words.
    """

    what_it_changes: str

    @abstractmethod
    def finding(self) -> Finding:
        """What was found, once the program has run."""


def applied(code: Sequence[str], edits: Sequence[Edit | None] = ()) -> Finding:
    """A finding of a remedy that was applied.

    Args:
        code: how a person writes it.
        edits: of the program; None among them for a place that is not known.
    """
    known = [edit for edit in edits if edit is not None]
    is_whole = len(known) == len(edits)
    unique = sorted(dict.fromkeys(known), key=lambda edit: (edit.file, edit.first))
    return Finding(Outcome.APPLIED, code=tuple(code), edits=tuple(unique) if is_whole else ())


def already_used(reason: str) -> Finding:
    """A finding of a remedy that the program has already."""
    return Finding(Outcome.ALREADY_USED, reason)


def does_not_apply(reason: str) -> Finding:
    """A finding of a remedy that changes nothing in this program."""
    return Finding(Outcome.DOES_NOT_APPLY, reason)
