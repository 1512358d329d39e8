"""The paths that a dry run keeps from being changed, as its reports name them."""

from __future__ import annotations

import filecmp
import os
import stat
import sys
from contextlib import suppress
from typing import Any, Final

from ...._common.process.real_files import on_disk
from .disk import mode_of
from .layers import Layers

WRITTEN: Final = ""
REMOVED: Final = " (not removed)"
RENAMED: Final = " (not renamed)"
"""What follows the name of a path."""


class ReportedPaths(Layers):
    """Layers with the names of the paths that a program would have changed."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.final_names: tuple[str, ...] | None = None  # once the overlay is closed

    def name(self, logical: str, path: Any, what: str = WRITTEN, *, is_loud: bool = True) -> None:
        """Name a path in the reports, and the first one on standard error at once."""
        if os.path.dirname(logical) in self.checkpoints:
            return
        before = self.named.get(logical)
        if before is not None and before[1] == what:
            return
        name = before[0] if before else os.fsdecode(path)
        self.tell("named", logical, name, what)
        if is_loud and not self.is_told:
            self.tell("told")
            print(
                f"pytorch-memlab: dry run: {name} stays as it is; no file that is there is changed,"
                " and none is written with tensors that have no values (--allow-writes, or"
                " simulate(..., allow_writes=True), writes them)",
                file=sys.stderr,
            )

    def unname(self, logical: str) -> None:
        if logical in self.named:
            self.tell("unnamed", logical)

    def paths(self) -> tuple[str, ...]:
        """The paths that are kept from being changed, as the program named them."""
        if self.final_names is not None:
            return self.final_names
        self.read_journal()
        named = self.named.copy().items()
        with on_disk():
            return tuple(name + what for path, (name, what) in named if not self._is_same(path))

    def _is_same(self, logical: str) -> bool:
        """True if the program wrote what was there already."""
        lower, real = self.below_itself(logical), self.real_of(logical)
        if not lower or not real or lower == real or mode_of(lower) is None:
            return False
        with suppress(OSError):
            if stat.S_ISREG(mode_of(real) or 0) and stat.S_ISREG(mode_of(lower) or 0):
                return filecmp.cmp(lower, real, shallow=False)
        return False

    def started_commands(self) -> tuple[tuple[str, bool], ...]:
        """Commands that were not held back, and whether they were refused."""
        self.read_journal()
        return tuple(self.commands.items())
