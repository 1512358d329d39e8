"""``run -o trace.pickle``: the memory history of the whole run, in PyTorch's own format."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path, PurePath

from pytorch_memlab._common.atomic_write import check_writable, write_whole
from pytorch_memlab._common.free_file import check_free, free_path
from pytorch_memlab._common.ranks import path_of_rank, prints
from pytorch_memlab.errors import UsageError
from pytorch_memlab.history.whole_run import WholeRunHistory

_ENDINGS = (".pickle", ".pkl")

_PROTOCOL = 4
"""The newest that PyTorch's web viewer reads."""


def is_trace(path: str) -> bool:
    """Whether a file's name asks for the memory history."""
    return path.lower().endswith(_ENDINGS)


class TraceFile:
    """The file that gets the memory history of a run, checked before there is one.

    Args:
        path: as the user gave it. Each process that ``torchrun`` started writes a file of its own.
        history: of the run, begun by others.
        force: overwrite an older one.

    Raises:
        UsageError: no file can be written there, or there is an older one.
    """

    def __init__(self, path: str, history: WholeRunHistory, *, force: bool) -> None:
        self._name = path_of_rank(path)
        check_writable(self._name)
        self._is_exclusive = not force
        if self._is_exclusive:
            check_free(self._name)
        self._path = Path(self._name).absolute()
        self._history = history
        self._process = os.getpid()

    def finish(self) -> None:
        """Write the file; not in a process that the program forked."""
        if os.getpid() != self._process:
            return
        found = self._history.snapshot()
        path = free_path(self._path) if self._is_exclusive else self._path
        name = str(PurePath(self._name).with_name(path.name))
        try:
            write_whole(path, lambda file: pickle.dump(found, file, _PROTOCOL), called=name)
        except UsageError as error:
            print(error, file=sys.stderr)
            return
        if prints():
            count = sum(map(len, found["device_traces"]))
            print(f"memory history written to {name}: {count:,} events", file=sys.stderr)
