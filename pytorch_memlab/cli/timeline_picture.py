"""``run -o step.svg``: a picture of the GPU memory of the whole run over time."""

from __future__ import annotations

import os
import sys

from pytorch_memlab.cli.ranks import path_of_rank, prints
from pytorch_memlab.cli.timeline import timeline_file
from pytorch_memlab.history.whole_run import WholeRunHistory

_ENDINGS = (".svg", ".png")


def is_picture(path: str) -> bool:
    """Whether a file's name asks for a picture."""
    return path.lower().endswith(_ENDINGS)


class TimelinePicture:
    """The file that gets the timeline of a run, checked before there is one.

    Args:
        path: as the user gave it. Each process that ``torchrun`` started writes a file of its own.
        history: of the run, begun by others.

    Raises:
        UsageError: no file can be written there, or matplotlib is missing.
    """

    def __init__(self, path: str, history: WholeRunHistory) -> None:
        self._file = timeline_file(path_of_rank(path), "")
        self._history = history
        self._process = os.getpid()

    def finish(self) -> None:
        """Draw and write it; not in a process that the program forked."""
        if os.getpid() != self._process:
            return
        import torch

        from pytorch_memlab.history.snapshot import history_of
        from pytorch_memlab.history.timeline import timeline_of

        if not torch.cuda.is_initialized():
            print("no timeline is drawn: the program used no GPU", file=sys.stderr)
            return
        history = history_of(self._history.snapshot())
        timelines = [
            timeline_of(
                history, one.device, torch.cuda.get_device_properties(one.device).total_memory
            )
            for one in history.devices
            if one.events or one.segments
        ]
        if not timelines:
            print("no timeline is drawn: the program allocated nothing on a GPU", file=sys.stderr)
            return
        self._file.write(timelines, "timeline", says_where=prints())
