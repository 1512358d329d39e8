"""Changes that a trial makes to its program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class Change:
    """One change of a program that is otherwise run as it is; this one changes nothing."""

    # Changes are pickled where processes cannot be forked, so they hold plain data.

    name: str = "unchanged"
    """The name of the change in a table."""

    def arguments(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The arguments of the program."""
        return tuple(argv)

    def keywords(self, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
        """The keyword arguments of a function that is run in place of a program."""
        return keywords

    def environment(self) -> Mapping[str, str]:
        """Environment variables to set before anything runs."""
        return {}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the change in the process of the trial, while the program runs."""
        # GPUs are simulated when this is entered, and no line of the program has run.
        yield

    def finding(self) -> Any:
        """The findings of the change in the program, as plain data."""
        # This is called in the process of the trial, when the program has ended.
        return None
