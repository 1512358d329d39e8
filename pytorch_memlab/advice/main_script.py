"""The script that runs, as a program that can run again."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import psutil

from .._common.ipython import ipython_shell
from ..fitting.target import ProgramTarget
from ..fitting.trial import Settings
from ..history.out_of_memory import OutOfMemory
from ..simulation import simulate_without_traces
from ..simulation.inspect import Machine
from .trials import Advice, TrialProgram, can_be_tried, seconds_for, tried_advice, untried_advice


def script_on(machine: Machine) -> TrialProgram | None:
    """The program of this process on some simulated GPUs; None if it is no script."""
    target = _started_script()
    if target is None or simulate_without_traces.stands_for_others:  # this is a trial
        return None
    gpu = machine.gpus[0]
    settings = Settings(
        num_gpus=len(machine.gpus),
        context=gpu.taken.context,
        others=gpu.taken.other_processes,
        simulates_for_program=True,
    )
    return TrialProgram(target, gpu.model, settings, computes=not machine.is_dry_run)


def advice_for_script(oom: OutOfMemory, script: TrialProgram) -> Advice:
    """Try remedies for a script that ends with an error."""
    main: Any = sys.modules["__main__"]
    if not any(frame.place.file == main.__file__ for frame in oom.frames):
        return untried_advice(oom, "the program that runs did not make the error")
    if not can_be_tried(oom):
        return untried_advice(oom)
    elapsed = time.time() - psutil.Process().create_time()
    return tried_advice(oom, script, seconds_for(elapsed))


def _started_script() -> ProgramTarget | None:
    """The script or module that Python was started with; not one that a command of ours runs."""
    main: Any = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if ipython_shell() is not None or path is None or not os.path.isfile(path):
        return None
    words = sys.orig_argv[1:]
    arguments = tuple(sys.argv[1:])
    if spec is not None:
        name = spec.name.removesuffix(".__main__")
        is_started = "-m" in words and words[words.index("-m") + 1 :][:1] == [name]
        return ProgramTarget(name, arguments, is_module=True) if is_started else None
    script = next((word for word in words if not word.startswith("-")), "")
    return ProgramTarget(path, arguments) if _is_same(script, path) else None


def _is_same(script: str, path: str) -> bool:
    return os.path.realpath(script) == os.path.realpath(path)
