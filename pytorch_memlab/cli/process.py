"""The process of a command, and the exit code that is known only at its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from .._common.interrupts.uninterrupted import DEFAULT_ACTION, set_handler, signal_handler
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
        self._allow_interrupts: Callable[[], object] = lambda: None

    def end_at_interrupts(self) -> None:
        """Let Ctrl-C end this process without a word, until ``allow_interrupts``."""
        # There is nothing to lose yet, and a KeyboardInterrupt within the imports of torch and
        # NumPy becomes other errors of theirs.
        if signal_handler(signal.SIGINT) is signal.default_int_handler:
            set_handler(signal.SIGINT, DEFAULT_ACTION)
            self._allow_interrupts = partial(set_handler, signal.SIGINT, signal.default_int_handler)

    def allow_interrupts(self) -> None:
        """From now on Ctrl-C is a ``KeyboardInterrupt``, as in any Python."""
        self._allow_interrupts()
        self._allow_interrupts = lambda: None

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
