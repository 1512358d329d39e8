"""Threads that the program starts: the simulation holds in them too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..._common.patches import Patches
from ..autocast.autocast import autocast_key_included
from ..dispatch.device_mode import SimulatedDeviceMode
from ..dispatch.function_mode import SimulatedFunctionMode
from ..machine.machine import Machine


@contextmanager
def modes(machine: Machine) -> Iterator[None]:
    """Simulate in this thread: CUDA's autocast, and the two modes."""
    with autocast_key_included(), SimulatedDeviceMode(machine), SimulatedFunctionMode(machine):
        yield


def install(machine: Machine, patches: Patches) -> None:
    """Let every thread that is started from now on simulate, until undone."""

    @patches.around(threading.Thread, "start")
    def start_inside(start: Callable[[threading.Thread], None], self: threading.Thread) -> None:
        run = self.run

        def run_inside() -> None:
            del self.run
            with modes(machine):
                run()

        self.run = run_inside  # type: ignore[method-assign]
        start(self)
