"""Changes that are made around an unmodified program, with their findings there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from .._common.patching.patches import Patches
from ..fitting.change import Change


class Outcome(Enum):
    """The outcome of a change in a program."""

    APPLIED = "applied"
    ALREADY_USED = "already used"
    DOES_NOT_APPLY = "does not apply"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of a file that become others."""

    file: str
    first: int
    last: int  # number of the last one; ``first - 1`` inserts before ``first``
    lines: tuple[str, ...]  # what stands there then, without line ends


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a change in the program that it was applied to."""

    outcome: Outcome
    reason: str = ""  # why it was not; empty if it was
    # as a person writes it, where the lines of the program are not known
    code: tuple[str, ...] = ()
    # how the program's own lines become; empty where they are not known
    edits: tuple[Edit, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """Comments of the code that tell how the program is started then."""
        return tuple(line for line in self.code if line.startswith("# "))


class AroundProgram(Change, ABC):
    """A change that is made around an unmodified program."""

    what_it_changes: str
    """The other differences, such as the speed or the rounding."""
    has_other_values: bool = True
    """False if nothing that is computed can differ, or another program is computed."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with Patches() as patches:
            self.patch(patches)
            yield

    def patch(self, patches: Patches) -> None:
        """Replace names that the program uses, while it runs."""

    @abstractmethod
    def finding(self) -> Finding:
        """The finding, once the program has run."""


def applied(code: Sequence[str], edits: Sequence[Edit | None] = ()) -> Finding:
    whole_edits = [edit for edit in edits if edit is not None]
    is_whole = len(whole_edits) == len(edits)
    unique = sorted(dict.fromkeys(whole_edits), key=lambda edit: (edit.file, edit.first))
    return Finding(Outcome.APPLIED, code=tuple(code), edits=tuple(unique) if is_whole else ())


def already_used(reason: str) -> Finding:
    return Finding(Outcome.ALREADY_USED, reason)


def does_not_apply(reason: str) -> Finding:
    return Finding(Outcome.DOES_NOT_APPLY, reason)
