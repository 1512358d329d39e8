"""Blind mode: simulated GPUs under a profiler that takes them for real ones.

``pytest --blind`` hides the simulation that is on from every module outside of
``pytorch_memlab/simulation/``. What a real GPU would run, runs: the counters, the memory history,
snapshots and errors of ``torch.cuda``, which the simulation answers as CUDA does. A test that
asks for more than a GPU tells has the mark ``knows_simulation(reason)``: here it must fail.

Real GPUs are there from the first moment of a process to the last one, so what the process keeps
of them is made new for each simulation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pytorch_memlab._common.process.made_once import made_once
from pytorch_memlab.simulation import inspect
from pytorch_memlab.simulation.machine import active

_INSIDE = "pytorch_memlab.simulation."


_nothing = ModuleType("active")
vars(_nothing).update(machine=None, observers=[], simulations=active.simulations)


def hide_simulations() -> None:
    """Let no module outside of the simulation find one, now and when it is imported."""
    _replace(active, _nothing)
    active.observers.append(_gpus_change)


@contextmanager
def blind() -> Iterator[None]:
    """Within: simulations are hidden. One that begins here ends here."""
    if inspect.active is _nothing:
        yield
        return
    hide_simulations()
    try:
        yield
    finally:
        active.observers.remove(_gpus_change)
        _replace(_nothing, active)


def _replace(before: ModuleType, after: ModuleType) -> None:
    for name, module in list(sys.modules.items()):
        is_outside = name.startswith("pytorch_memlab") and not name.startswith(_INSIDE)
        if (is_outside or module is inspect) and getattr(module, "active", None) is before:
            module.active = after


def _gpus_change(_machine: object, _is_on: bool) -> None:
    from pytorch_memlab import devices
    from pytorch_memlab.devices import cuda, failed_request, program_view
    from pytorch_memlab.line_profiler.profile import global_line_profiler

    for index, view in list(program_view._views.items()):
        program_view.remove(index, view)
    devices._cuda = made_once(cuda.CudaDevice)
    failed_request._noted.clear()
    failed_request._observed.clear()
    selection = global_line_profiler._selection
    selection._answer = type(selection._answer)(machine=selection)  # the first question is to come
