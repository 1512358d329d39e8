"""The files that a dry run keeps as they are, as the rest of the simulation sees them."""

from __future__ import annotations

from typing import Protocol


class KeptFiles(Protocol):
    """The overlay of a dry run; Note [Overlay] in ``dry_run/files``."""

    def paths(self) -> tuple[str, ...]:
        """The paths that are kept from being changed, as the program named them."""

    def started_commands(self) -> tuple[tuple[str, bool], ...]:
        """Commands whose writes are not held back, and whether they were refused."""

    def refuse_commands(self) -> None:
        """Refuse such commands, from now on."""
