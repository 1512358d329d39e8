"""The out-of-memory report of a program that ``run`` runs, and the file that gets it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytorch_memlab._common.checked_file import CheckedFile
from pytorch_memlab._common.ranks import path_of_rank
from pytorch_memlab._common.uncaught_errors import uncaught

if TYPE_CHECKING:
    from pytorch_memlab._common.uncaught_errors import Report
    from pytorch_memlab.cli.run.profile import Profile


class OutOfMemoryReport:
    """Explains an out-of-memory error that the program does not handle."""

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else CheckedFile(path_of_rank(path))

    def start(self, process: ExitStack) -> None:
        """Begin to wait for an error, also one of a thread."""
        uncaught.watch()
        process.callback(uncaught.unwatch)
        uncaught.told.append(self._write)
        process.callback(uncaught.told.remove, self._write)

    def finish(self, profile: Profile) -> None:
        """Make the report of the error that ended the program, if it ran out of memory."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, SystemExit):
            return
        report = uncaught.add(error)
        profile.note_failure(error)
        if report is not None:
            self._write(error, report)

    def _write(self, error: BaseException, report: Report) -> None:  # noqa: ARG002 - every function in told gets it
        if self._file is None or report.is_written:
            return
        report.is_written = True
        text = report.text
        if self._file.ending == ".json" and report.facts is not None:
            from pytorch_memlab.render.oom import data

            text = json.dumps(data(report.facts), indent=1) + "\n"
        self._file.write_or_tell(lambda: text)
