"""Remedies are tried: the program runs again with each of them, without values and without a GPU.

Note [Trials of remedies]
The process of the program holds its tensors and its changed modules. So a new Python runs the
trials: it imports torch once, and forks for each of them. A trial runs on a simulated GPU without a
limit, which tells the peak. Its allocations are replayed with the memory of the GPU, which tells
whether the program fits. Of a program without an error, another run stops at the peak, as if the
GPU ended there: the causes read the same facts as after an error. If the program computed, the best
remedies run with values too; Note [Compared values]. The trials end together when their time is
over. A remedy whose trial did not end by then is not tried.
"""

from __future__ import annotations

import _thread
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ..errors import UsageError
from ..fitting.child import ChildWork, run_in_children
from ..history.out_of_memory import OutOfMemory
from .catalogue import candidates, faults, most_likely
from .remedy_runs import RemedyRuns, remedies_to_try
from .trial_records import Advice, TrialProgram

_LEAST_SECONDS: Final = 10.0
"""Seconds that a short program gets: a new Python needs some to import torch."""
MOST_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Request:
    program: TrialProgram
    oom: OutOfMemory | None  # None for a program that ended without an error
    seconds: float  # for the trials, from when the new Python has started
    latest: float  # the end of them in any case, as ``time.time`` has it
    only_faults: bool


def seconds_for(elapsed: float) -> float:
    """The time for all trials of a program that ran some seconds itself."""
    return min(MOST_SECONDS, max(_LEAST_SECONDS, elapsed))


def untried_advice(oom: OutOfMemory, reason: str = "") -> Advice:
    """The remedies by what the blocks in use tell."""
    remedies = tuple(most_likely(candidates(oom)))
    return Advice(remedies, (None,) * len(remedies), reason)


def tried_advice(oom: OutOfMemory, program: TrialProgram, seconds: float) -> Advice:
    """The remedies that a second run of the program confirms, and those that cannot be tried."""
    advice = _in_new_python(oom, program, seconds)
    return advice if isinstance(advice, Advice) else untried_advice(oom, advice)


def advice_without_error(
    program: TrialProgram,
    seconds: float,  # for all trials
    *,
    only_faults: bool = False,  # leaves out what lowers the peak of a program that is right
) -> Advice:
    """The remedies that lower the peak of a program, the one that saves most first."""
    # Its loops end when their peak repeats.
    program = replace(program, settings=replace(program.settings, least_steps=0))
    advice = _in_new_python(None, program, seconds, only_faults=only_faults)
    return advice if isinstance(advice, Advice) else Advice((), (), advice)


def can_be_tried(oom: OutOfMemory) -> bool:
    return bool(remedies_to_try(candidates(oom)))


def _in_new_python(
    oom: OutOfMemory | None, program: TrialProgram, seconds: float, *, only_faults: bool = False
) -> Advice | str:
    """The advice, or the reason why there is none."""
    latest = time.time() + max(seconds, MOST_SECONDS)
    request = _Request(program, oom, seconds, latest, only_faults)
    with tempfile.TemporaryDirectory(prefix="pytorch-memlab-") as folder:
        output = os.path.join(folder, "output.txt")
        work: ChildWork[_Request, Advice | str] = ChildWork(
            _advise, request, partial(_lost, output), output, needs_new_python=True
        )
        try:
            [(_, advice)] = run_in_children([work], 1)
        except UsageError as error:  # what the program is made of cannot be given to a new Python
            return str(error)
    return advice


def _lost(output: str, status: int) -> str:
    """The reason why a process ended without advice."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    with open(output, encoding="utf-8", errors="replace") as file:
        said = file.read().strip().splitlines()[-1:]
    return f"the process of the trials ended with {how}" + "".join(f": {line}" for line in said)


def _advise(request: _Request) -> Advice:
    """Run the trials in this process, which is a new one, until the time is over."""
    program, oom = request.program, request.oom
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    program.target.show_sources()
    trials = RemedyRuns(program, has_error=oom is not None)
    deadline = min(time.time() + request.seconds, request.latest)
    with suppress(KeyboardInterrupt), _interrupted_at(deadline):
        if oom is None:
            trials.run({0: None})
            oom = trials.facts_at_peak()
        if oom is not None:
            likely = candidates(oom)
            trials.try_all(faults(likely) if request.only_faults else likely)
            trials.run_together()
            if trials.run_whole():
                trials.run_together()
    reason = trials.reason(request.seconds)
    if oom is None:
        return Advice((), (), reason)
    if reason and request.oom is not None:
        return untried_advice(oom, reason)
    return trials.advice(reason or trials.reason_of_the_rest(request.seconds))


@contextmanager
def _interrupted_at(deadline: float) -> Iterator[None]:
    """Raise KeyboardInterrupt at that time; already on entry, if it is over."""
    timer = threading.Timer(max(0.0, deadline - time.time()), _thread.interrupt_main)
    timer.daemon = True
    try:
        timer.start()
        yield
    finally:
        timer.cancel()
