"""Differences between two snapshots: tensors that came, went, grew or shrank, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._common.text.displayed import Displayed
from .._common.text.prose_size import signed
from .memory_snapshot import MemorySnapshot, sizes_by

if TYPE_CHECKING:
    import pandas as pd

CAME, WENT, GREW, SHRANK = KINDS = ("came", "went", "grew", "shrank")


@dataclass(frozen=True, slots=True)
class ChangedName:
    """One name that two snapshots do not have alike."""

    device: str  # as text
    name: str  # of a row; rows of one name on one device count together
    before: int  # bytes in the first snapshot
    after: int  # bytes in the second
    kind: str  # one of ``KINDS``

    @property
    def delta(self) -> int:
        """Bytes more in the second."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """All changes between two snapshots. ``str`` gives it as text, a notebook shows it as HTML.

    Args:
        changes: in the order of ``KINDS``, the largest first in each.
    """

    changes: tuple[ChangedName, ...]

    def names(self, kind: str) -> list[str]:
        """The names that ``came``, ``went``, ``grew`` or ``shrank``."""
        return [change.name for change in self.changes if change.kind == kind]

    def to_dataframe(self) -> pd.DataFrame:
        """One row per name.

        Returns:
            columns ``device, name, kind, before, after, delta``, in bytes.
        """
        import pandas as pd

        rows = [
            (change.device, change.name, change.kind, change.before, change.after)
            for change in self.changes
        ]
        columns = ["device", "name", "kind", "before", "after"]
        frame = pd.DataFrame(rows, columns=columns, dtype="object")
        frame = frame.astype({"before": "int64", "after": "int64"})
        return frame.assign(delta=frame["after"] - frame["before"])

    def __repr__(self) -> str:
        """The number of names that changed, and the bytes."""
        return f"<{type(self).__name__}: {self.summary()}>"

    def summary(self) -> str:
        """The numbers of names that came, went, grew and shrank, and the bytes in all."""
        if not self.changes:
            return "no change"
        kinds = [f"{len(self.names(kind))} {kind}" for kind in KINDS if self.names(kind)]
        total = sum(change.delta for change in self.changes)
        return f"{', '.join(kinds)}, in all {signed(total, '+')}"


def diff(before: MemorySnapshot, after: MemorySnapshot) -> Difference:
    """Compare two snapshots by name.

    Tensors without a name have numbers, which stay with them: take both snapshots with one
    reporter, so that a number is the same tensor in both. A tensor whose name changed, as another
    variable leads to it or another function took the snapshot, has its later name in both.
    """
    renamed = _renamed(before, after)
    new = sizes_by(lambda row: row.name, after)
    old = sizes_by(lambda row: renamed.get((str(row.device), row.identity), row.name), before)
    changes = []
    for key in dict.fromkeys([*new, *old]):
        was, is_now = old.get(key, 0), new.get(key, 0)
        if was != is_now:
            changed = GREW if is_now > was else SHRANK
            kind = CAME if key not in old else WENT if key not in new else changed
            changes.append(ChangedName(*key, was, is_now, kind))
    changes.sort(key=lambda change: (KINDS.index(change.kind), -abs(change.delta)))
    return Difference(tuple(changes))


def _renamed(before: MemorySnapshot, after: MemorySnapshot) -> dict[tuple[str, str], str]:
    """Device and identity of tensors whose name is gone -> their new name, if no tensor had it."""
    old, new = (
        {(str(row.device), row.name) for row in snapshot.rows} for snapshot in (before, after)
    )
    names = {(str(row.device), row.identity): row.name for row in after.rows if row.identity}
    return {
        key: names[key]
        for row in before.rows
        if (key := (str(row.device), row.identity)) in names
        and (key[0], row.name) not in new
        and (key[0], names[key]) not in old
    }
