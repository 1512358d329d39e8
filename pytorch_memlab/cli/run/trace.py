"""``run -o trace.pickle``: the memory history of the whole run, in PyTorch's own format."""

from __future__ import annotations

import os
import pickle
import sys

from pytorch_memlab._common.checked_file import CheckedFile
from pytorch_memlab._common.ranks import path_of_rank, prints
from pytorch_memlab.history.whole_run import WholeRunHistory

_ENDINGS = (".pickle", ".pkl")

_PROTOCOL = 4
"""The newest that PyTorch's web viewer reads."""


def is_trace(path: str) -> bool:
    """True for a name that ends in ``.pickle`` or ``.pkl``."""
    return path.lower().endswith(_ENDINGS)


class TraceFile:
    """The file that gets the memory history of a run, checked before there is one."""

    def __init__(self, path: str, history: WholeRunHistory, *, force: bool) -> None:
        self._file = CheckedFile(path_of_rank(path), keeps_older=not force)
        self._history = history
        self._process = os.getpid()

    def finish(self) -> None:
        """Write the file; not in a process that the program forked."""
        if os.getpid() != self._process:
            return
        found = self._history.snapshot()
        name = self._file.write_or_tell(lambda: lambda file: pickle.dump(found, file, _PROTOCOL))
        if name is not None and prints():
            count = sum(map(len, found["device_traces"]))
            print(f"memory history written to {name}: {count:,} events", file=sys.stderr)
