"""The script or the notebook of this process, as a program that can run again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

import pytorch_memlab

from .._common.process.ipython import ipython_shell
from ..errors import UsageError
from ..fitting.target import ProgramTarget, Target
from ..fitting.trial import Settings
from ..history.out_of_memory import OutOfMemory
from ..simulation import simulate_without_traces
from ..simulation.inspect import Machine
from .trial_records import Advice, TrialProgram
from .trials import can_be_tried, seconds_for, tried_advice, untried_advice


def program_on(machine: Machine) -> TrialProgram | str | None:
    """The program of this process on some simulated GPUs; a text says why it cannot run twice."""
    # None stands for a program that is neither a script nor a notebook, and for a trial.
    if simulate_without_traces.stands_for_others:  # this is a trial
        return None
    shell = ipython_shell()
    target: Target | None
    if shell is None:
        target = _started_script()
    else:
        taken = machine.gpus[0].taken
        room = machine.gpus[0].model.total_memory - taken.context - taken.other_processes
        try:
            target = pytorch_memlab._repeated_cells_of(shell, room)
        except UsageError as error:
            return str(error)
    return None if target is None else repeated_on(machine, target)


def repeated_on(machine: Machine, target: Target) -> TrialProgram:
    """A program that ran on some simulated GPUs."""
    gpu = machine.gpus[0]
    settings = Settings(
        num_gpus=len(machine.gpus),
        context=gpu.taken.context,
        others=gpu.taken.other_processes,
        simulates_for_program=True,
    )
    return TrialProgram(target, gpu.model, settings, computes=not machine.is_dry_run)


def advice_for(
    oom: OutOfMemory, program: TrialProgram | str, tell: Callable[[str], object]
) -> Advice:
    """Try remedies for a program that ends with an error, or a cell that does."""
    if not can_be_tried(oom):
        return untried_advice(oom)
    if isinstance(program, str):
        return untried_advice(oom, program)
    if isinstance(program.target, ProgramTarget):
        main: Any = sys.modules["__main__"]
        if not any(frame.place.file == main.__file__ for frame in oom.frames):
            return untried_advice(oom, "the program that runs did not make the error")
    seconds = _seconds_for(program)
    tell(f"trying remedies for at most {seconds:.0f} s (an interrupt ends that)")
    return tried_advice(oom, program, seconds)


def _seconds_for(program: TrialProgram) -> float:
    """The time for all trials of the program of this process."""
    if isinstance(program.target, ProgramTarget):
        return seconds_for(time.time() - psutil.Process().create_time())
    return seconds_for(time.process_time())  # cells wait for a person between them


def _started_script() -> ProgramTarget | None:
    """The script or module that Python was started with; not one that a command of ours runs."""
    main: Any = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if path is None or not os.path.isfile(path):
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
