"""Copies between GPUs and pinned host memory, in chunks that follow each other without a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from .._common.interrupts.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from rich.console import Console

CHUNK = 64 * 2**20
"""Bytes after which an interrupt takes effect: some milliseconds of copying."""

LARGE = 2**30
"""Bytes from which on a bar is shown."""

Arrived = Callable[[int], object]
"""Shows that so many bytes in all have arrived."""


class Copies:
    """Copies in the default streams; ``done`` are the bytes that arrived, in the order given."""

    def __init__(self, arrived: Arrived) -> None:
        self.done = 0
        self._arrived = arrived
        self._given = 0
        self._chunk = 0
        self._devices: set[torch.device] = set()
        self._before: tuple[int, list[torch.cuda.Event]] = (0, [])

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exc: object) -> None:
        with uninterrupted():
            self.wait()

    def copy(
        self, source: torch.UntypedStorage, target: torch.UntypedStorage, gpu: torch.device
    ) -> int:
        """Copy a storage to or from a GPU; returns the value of ``done`` when it has arrived."""
        whole, into = _bytes_of(source), _bytes_of(target)
        stream = torch.cuda.stream(torch.cuda.default_stream(gpu))
        size = source.nbytes()
        begin = 0
        while begin < size:
            end = min(size, begin + CHUNK - self._chunk)
            with stream:
                into[begin:end].copy_(whole[begin:end], non_blocking=True)
            self._devices.add(gpu)
            self._given += end - begin
            self._chunk += end - begin
            begin = end
            if self._chunk == CHUNK:
                self._turn()
        return self._given

    def wait(self) -> None:
        """Wait for all bytes to arrive."""
        self._turn()
        self._turn()

    def _turn(self) -> None:
        """End a chunk, and wait for the one before it."""
        events = []
        for device in self._devices:
            with torch.cuda.device(device):
                event = torch.cuda.Event()
                event.record(torch.cuda.default_stream(device))
            events.append(event)
        (given_back, before), self._before = self._before, (self._given, events)
        self._devices = set()
        self._chunk = 0
        for reached in before:
            reached.synchronize()
        self.done = given_back
        self._arrived(given_back)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.inference_mode(False):
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return whole.set_(storage)


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
