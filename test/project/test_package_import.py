"""The first use of each part of the package changes nothing else in the process."""

from __future__ import annotations

import pytest
from support.python_process import run_python

PROGRAM = """
import gc, sys
import torch
import pytorch_memlab
from pytorch_memlab._common.process import garbage_collection  # before the collector is off

collected_in = set()

def note(phase, info):
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(frame.f_globals["__name__"])
        frame = frame.f_back
    if any(name.startswith("importlib.") for name in names):
        collected_in.update(names)

if sys.argv[1] == "off":
    gc.disable()
gc.set_threshold(50)
gc.callbacks.append(note)
pytorch_memlab.LineProfiler, pytorch_memlab.MemReporter, pytorch_memlab.simulate
gc.callbacks.clear()
print(gc.isenabled(), "pytorch_memlab.simulation.simulator" in sys.modules)
print(sorted(name for name in collected_in if name.startswith("pytorch_memlab.")))
"""


@pytest.mark.parametrize("collects", [True, False])
def test_first_use_of_a_name_searches_for_no_garbage(collects: bool) -> None:
    done = run_python(["-c", PROGRAM, "on" if collects else "off"], imports_package=True)
    assert done.stdout == f"{collects} True\n[]\n"
