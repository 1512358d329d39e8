"""Threads that the program starts: the simulation holds in them too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ..._common.patches import Patches


def install(inside: Callable[[], AbstractContextManager[Any]], patches: Patches) -> None:
    """Run every thread that is started from now on inside a context, until the patches are undone.

    Args:
        inside: makes the context of one thread.
        patches: who puts ``threading.Thread.start`` back.
    """
    start = threading.Thread.start

    def start_inside(self: threading.Thread) -> None:
        run = self.run

        def run_inside() -> None:
            del self.run
            with inside():
                run()

        self.run = run_inside  # type: ignore[method-assign]
        start(self)

    patches.set(threading.Thread, "start", start_inside)
