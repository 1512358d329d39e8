"""The progress of a large copy: a bar in a terminal or a notebook, otherwise nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LARGE = 2**30
"""Bytes from which on a bar is shown."""


Arrived = Callable[[int], object]
"""Shows that so many bytes in all have arrived."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Arrived]:
    """Show the progress of a large copy in a terminal or a notebook, until it has ended."""
    console = _console() if total >= LARGE else None
    if console is None or not (console.is_terminal or console.is_jupyter):
        yield lambda _: None
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
        task = bar.add_task(what, total=total)
        yield lambda nbytes: bar.update(task, completed=nbytes, refresh=True)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)
