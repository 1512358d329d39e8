"""The progress of a large copy: a bar in a terminal or a notebook, otherwise nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LARGE = 2**30
"""Bytes from which on a bar is shown."""


class Progress(Protocol):
    """Shows the progress of a copy."""

    def arrived(self, nbytes: int) -> None:
        """``nbytes`` in all have arrived."""


class _Silent:
    def arrived(self, nbytes: int) -> None:
        """Say nothing."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Progress]:
    """Show the progress of a large copy in a terminal or a notebook, until it has ended."""
    if total < LARGE or not _shows_bars(console := _console()):
        yield _Silent()
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    # No other thread, and no redirection of what the program prints.
    with progress.Progress(
        *columns,
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        yield _Bar(bar, bar.add_task(what, total=total))


class _Bar:
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def arrived(self, nbytes: int) -> None:
        """Draw it again."""
        self._bar.update(self._task, completed=nbytes, refresh=True)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _shows_bars(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter
