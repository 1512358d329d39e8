"""The files of ``run -o``, of all formats."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytorch_memlab.cli.output import is_page, is_profile, writer_to
from pytorch_memlab.cli.run.timeline_picture import TimelinePicture, is_picture
from pytorch_memlab.cli.run.trace import TraceFile, is_trace
from pytorch_memlab.errors import UsageError
from pytorch_memlab.history.whole_run import WholeRunHistory
from pytorch_memlab.simulation.inspect import active

if TYPE_CHECKING:
    from pytorch_memlab.cli.run.profile import Profile

_ENDINGS = (".txt", ".html", ".json", ".pickle", ".pkl", ".svg", ".png")


class RunFiles:
    """The files that a run writes at its end, checked before the program runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        names: Sequence[str] = options.outputs or ()
        _check_endings(names)
        self._has_page = any(map(is_page, names))
        self._saves_history = options.history
        if options.history and not any(map(is_profile, names)):
            raise UsageError("--history is for the profile: give -o FILE.json too")
        reports = [name for name in names if not is_trace(name) and not is_picture(name)]
        force, command = options.force, _command(options)
        self.names = names
        self.has_report = bool(reports)
        self.write = writer_to(reports, force=force)
        self.history = WholeRunHistory(keeps_events=len(reports) < len(names))
        self._traces = [TraceFile(one, self.history, force=force) for one in names if is_trace(one)]
        self._pictures = [TimelinePicture(one, command) for one in names if is_picture(one)]

    @property
    def need_history_of_torch(self) -> bool:
        """True if PyTorch's own memory history is written, or drawn for a real GPU."""
        return bool(self._traces or (self._pictures and active.machine is None))

    @property
    def need_allocations(self) -> bool:
        """True if the profile keeps every allocation on simulated GPUs."""
        is_drawn = self._has_page and active.machine is not None
        return bool(self._pictures) or self._saves_history or is_drawn

    def finish_with(self, ending: ExitStack, profile: Profile) -> None:
        """Let traces and pictures be written when a stack closes, the traces first."""
        for picture in reversed(self._pictures):  # the stack ends with the first one
            ending.callback(picture.finish, profile, self.history)
        for trace in self._traces:
            ending.callback(trace.finish)


def _check_endings(names: Sequence[str]) -> None:
    for name in names:
        if not name.lower().endswith(_ENDINGS):
            endings = ", ".join(_ENDINGS)
            raise UsageError(f"cannot tell the format of {name}: end it in {endings}")


def _command(options: argparse.Namespace) -> str:
    """The program, without its folder, and its arguments."""
    return " ".join([os.path.basename(options.script), *options.arguments])
