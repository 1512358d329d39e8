"""The facts of a program at its peak, as if its GPU ended there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .._common.process.uncaught_errors import chain
from ..fitting.change import Change
from ..history.out_of_memory import OutOfMemory
from ..history.refused_peak import refused_peak
from ..simulation.inspect import active


class FactsAtPeak(Change):
    """Ends the program at the peak that another run of it had."""

    name = "facts at the peak"

    def __init__(self, peak: int) -> None:
        self._peak = peak  # bytes in use

    @contextmanager
    def applied(self) -> Iterator[None]:
        machine = active.machine
        assert machine is not None
        with refused_peak(machine.gpus[0], self._peak):
            yield

    def finding(self) -> OutOfMemory | None:
        """The facts; None if the program did not come there, or handled the error."""
        import torch

        from ..reporter.oom_facts import facts_of

        machine, error = active.machine, sys.exc_info()[1]
        failure = None if machine is None else machine.gpus[0].failure
        if failure is None or error is None:
            return None
        kind = torch.OutOfMemoryError
        origin = next((cause for cause in chain(error) if isinstance(cause, kind)), None)
        return None if origin is None else facts_of(failure.request, origin, failure)
