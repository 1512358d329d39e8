"""The process of a command, and the exit code that is known only at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from .._common.interrupts.whole_block import WholeStack
from .ending_signals import OTHERS

_exit = os._exit


class CommandProcess(WholeStack):
    """Holds what stays in force until the process of a command ends."""

    def __init__(self) -> None:
        super().__init__(OTHERS)
        self.last_work: Callable[[], object] = lambda: None
        """What comes before anything is given back; it may take long, and Ctrl-C ends it."""
        self.status: int | None = None  # exit code of the command; None while it works
        self.late_status = 0  # that which takes the place of 0, as a file could not be written

    def leave(self, error: BaseException | None) -> None:
        try:
            self.last_work()
        finally:
            super().leave(error)

    def end_late(self) -> None:
        """End the process with the exit code that came after the command had ended."""
        # The last exit handler is all that can change the exit code then.
        if self.status == 0 and self.late_status:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            _exit(self.late_status)
