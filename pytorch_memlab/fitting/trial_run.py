"""Runs of a program without values, each in a child process."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import time_ns
from types import FrameType
from typing import Any, Final, NoReturn

import torch

from .._common.frames.program_lines import is_of_program
from .._common.frames.user_code import is_of_user
from .._common.patching.patches import Patches
from .._common.process.main_program import join_other_threads
from .._common.torch.optimizer_steps import ProgramDone, after_each_step, end_program
from ..errors import HistoryError
from ..records import Approximation, FilesOfRun
from ..reporter.leaks import held_in_containers
from ..simulation.inspect import Machine, active, adopt
from .child import ChildWork, can_fork, run_in_children
from .loops import LibraryLoop, Loop, Loops, steps_left, stopped_library_loop, total_steps
from .program_error import exit_text, is_out_of_memory, problem_of, traceback_of
from .settled import Repeated, StepPeaks, cycle_of, has_stopped_growing, have_others, repeats
from .trial import Ending, Trial, TrialError, TrialRequest
from .watched_gpu import GPUReads
from .watched_source import calls_behind

_UNLIMITED: Final = 2**47
"""Bytes of the GPU that a trial runs on: the most that a simulated GPU can have."""


_INDUCTORS = "TORCHINDUCTOR_CACHE_DIR"
"""A variable that importing dynamo sets."""


_NEEDED: Final = (
    "torch._dynamo",
    "pytorch_memlab.simulation.simulator",
    "pytorch_memlab.history.recorder",
    "pytorch_memlab.devices.simulated",
    "pytorch_memlab.scopes",
)


def run(request: TrialRequest) -> Trial:
    return next(run_all([request], 1))[1]


def run_all(
    requests: Sequence[TrialRequest], processes: int | None = None, *, repeats_failed: bool = False
) -> Generator[tuple[int, Trial], None, None]:
    """Run several trials, some at a time, by default one for each processor."""
    if can_fork():  # forks have what is imported here; a training step imports dynamo
        before = os.environ.get(_INDUCTORS)
        for name in _NEEDED:
            with suppress(ImportError):
                importlib.import_module(name)
        if before is None:
            os.environ.pop(_INDUCTORS, None)
    works = [
        ChildWork(
            _trial, request, partial(_lost, request), request.output, request.target.uses_real_gpu()
        )
        for request in requests
    ]
    for index, trial in run_in_children(works, processes or processors()):
        # Alone: another one at the same time may be the reason.
        is_repeated = repeats_failed and trial.failed and len(requests) > 1
        yield index, run(requests[index]) if is_repeated else trial


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _lost(request: TrialRequest, status: int) -> Trial:
    """The trial of a process that ended without a result."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    text = f"the process of the program ended with {how}"
    problem = TrialError(text, None)
    return Trial(gpu=request.gpu, ending=Ending.ERROR, error=f"{text}\n", problem=problem)


def _trial(request: TrialRequest) -> Trial:
    """Run a trial in this process, which is its own."""
    from ..simulation import simulate, simulate_without_traces

    torch.set_num_threads(1)
    request.target.show_sources()
    reads, settings = GPUReads(), request.settings
    context, others = (settings.context, settings.others) if request.is_limited else (0, 0)
    for change in request.changes:
        os.environ.update(change.environment())
    gpu = reads.watched(request.gpu, None if request.is_limited else _UNLIMITED)
    default_device = torch.get_default_device()
    outer = _leave_simulations()
    kind = simulate if settings.allow_writes else simulate_without_traces
    simulation = kind(
        gpu,
        settings.num_gpus,
        compute=request.computes,
        context=context,
        others=others,
        allow_writes=settings.allow_writes,
        assume=None if request.computes else settings.assume,
    )
    with simulation as machine, Patches() as patches:
        patches.set(simulate_without_traces, "stands_for_others", settings.simulates_for_program)
        if machine.kept_files is not None:
            machine.kept_files.refuse_commands()
        run = _Run(request, machine, reads, outer)
        reads.watch(machine, patches)
        if default_device.type == "cuda":  # the end of the simulation around this took it back
            torch.set_default_device(default_device)
        patches.around(os, "_exit")(run.exit_at_once)
        return run.trial()


def _leave_simulations() -> Machine | None:
    """End the simulations that were on where this process was forked; the innermost machine."""
    # Two simulations at a time would both follow what the program does.
    machine = active.machine
    active.end_simulations()
    return machine


class _Run:
    """The program of a trial on simulated GPUs."""

    def __init__(
        self, request: TrialRequest, machine: Machine, reads: GPUReads, outer: Machine | None
    ) -> None:
        from ..history.recorder import Recording

        self._request = request
        self._machine = machine
        self._outer = outer
        self._reads = reads
        self._recording = Recording(history=True)
        self._peaks = StepPeaks(machine)
        # Weakly: a trial keeps nothing that the program drops.
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._loops = Loops(machine, request.settings.most_iterations)
        self._phase = 0  # steps before those of the loop that runs now
        self._step_times: list[int] = []
        self._repeated: list[tuple[Repeated, Loop | None]] = []  # with the outermost loop
        self._held = Counter[str]()  # tensors that containers hold, one step before the last
        self._ending: Ending | None = None  # of the loops that ended first
        self._asked: set[int] = set()  # frames of libraries that were asked to end their loops
        self._has_stopped = False
        self._process = os.getpid()
        self._trial: Trial | None = None

    def trial(self) -> Trial:
        changes = self._request.changes
        self._recording.begin()
        try:
            with ExitStack() as exits:
                for change in changes:
                    exits.enter_context(change.applied())
                self._loops.watch(exits.enter_context(Patches()))
                if self._outer is not None:
                    adopt(self._machine, self._outer, self._request.target.used_storages())
                self._call(exits.enter_context(self._request.target.started(changes)))
                self._ended(Ending.FINISHED)
        except ProgramDone:
            pass
        except SystemExit as exit_:
            text = exit_text(exit_.code)
            self._ended(Ending.ERROR, text, problem_of(exit_, text.rstrip()))
        except BaseException as error:
            problem = problem_of(error, "".join(traceback.format_exception_only(error)).rstrip())
            text = traceback_of(error)
            has_run_out = is_out_of_memory(error, is_limited=self._request.is_limited)
            self._ended(Ending.OUT_OF_MEMORY if has_run_out else Ending.ERROR, text, problem)
            with suppress(OSError, ValueError, AttributeError):  # a full disk, or a stream closed
                sys.stderr.write(text)
        finally:
            self._recording.end()
        assert self._trial is not None
        return self._trial

    def exit_at_once(self, original: Callable[[int], NoReturn], status: int) -> NoReturn:
        """``os._exit``: with 0 the program has come to its end."""
        is_main = threading.current_thread() is threading.main_thread()
        if status == 0 and is_main and os.getpid() == self._process:
            self._ended(Ending.FINISHED)
            end_program()
        original(status)

    def _call(self, call: Callable[[], object]) -> None:
        threads = threading.enumerate()
        with after_each_step(self._end_step):
            try:
                self._repeat(call)
            except SystemExit as exit_:
                if isinstance(exit_, ProgramDone) or exit_.code not in (None, 0):
                    raise
            join_other_threads(threads)

    def _repeat(self, call: Callable[[], object]) -> None:
        """Run a script once, a function until it has settled."""
        while True:
            steps = len(self._peaks.all)
            call()
            if not self._request.target.is_repeated:
                return
            if len(self._peaks.all) == steps:  # a step, if no optimizer has stepped in it
                self._end_step()

    def _end_step(self, optimizer: Any = None) -> None:
        """End the loop of a step when its peak has settled, or after a number of steps."""
        if optimizer is not None:
            self._stepped.add(optimizer)
        if self._has_stopped:
            end_program()
        frame = sys._getframe(1)
        loops = self._loops.around(frame)
        if any(loop.is_ending for loop in loops):
            return
        self._peaks.end_step()
        self._step_times.append(time_ns() // 1000)
        self._loops.saw_step(loops)
        ending = self._ending_of_phase()
        if ending is None:
            if len(self._peaks.all) - self._phase == self._most_steps - 1:
                self._held = held_in_containers(frame)
            return
        self._ending = self._ending or ending
        is_repeated = self._request.target.is_repeated
        has_settled = ending is Ending.SETTLED
        asked = None if is_repeated else stopped_library_loop(frame, has_settled=has_settled)
        if not has_settled:
            ended = self._unsettled_steps(ending, frame, loops, asked)
            self._repeated.append((ended, loops[0] if loops and asked is None else None))
        if is_repeated:
            self._stop(())
        if asked is not None and asked.frame not in self._asked:
            if asked.is_last:
                self._asked.add(asked.frame)
        elif loops and asked is None:
            self._loops.end(loops)
        else:
            self._stop(_behind(frame))
        self._phase = len(self._peaks.all)

    def _unsettled_steps(
        self, ending: Ending, frame: FrameType, loops: Sequence[Loop], asked: LibraryLoop | None
    ) -> Repeated:
        """The steps of the loop that ends now, whose memory may grow with more of them."""
        holder = ""
        if ending is Ending.UNSETTLED:
            more = (held_in_containers(frame) - self._held).most_common(1)
            holder = more[0][0] if more else ""
        times = tuple(self._step_times[self._phase :])
        ended = Repeated(times, total_steps(loops), holder=holder, skipped_here=steps_left(loops))
        if asked is None:
            return ended
        left = None if asked.total is None else max(asked.total - len(self._peaks.all), 0)
        return replace(ended, total=asked.total, skipped=left)

    def _ending_of_phase(self) -> Ending | None:
        """The reason to end the loop that runs now; None if it goes on."""
        peaks, steps = self._peaks.all[self._phase :], self._request.settings.steps
        is_cycle = repeats(peaks) if self._phase else bool(cycle_of(peaks))
        has_settled = is_cycle and not have_others(self._stepped) and has_stopped_growing(peaks)
        if steps is not None:
            if len(peaks) < steps:
                return None
            return Ending.SETTLED if has_settled else Ending.STEPS
        if len(self._peaks.all) < self._request.settings.least_steps:
            return None
        is_last = len(peaks) >= self._most_steps
        # What a branch leaves is known when it was taken twice.
        least = 0 if self._request.settings.awaits_branches else 1
        if has_settled and (is_last or not self._loops.unreached(range(least, 2))):
            return Ending.SETTLED
        return Ending.UNSETTLED if is_last else None

    @property
    def _most_steps(self) -> int:
        """Steps after which the loop that runs now ends, settled or not."""
        settings = self._request.settings
        return max(settings.most_steps, settings.least_steps - self._phase)

    def _stop(self, unreached: tuple[str, ...]) -> NoReturn:
        """End the program here."""
        assert self._ending is not None
        self._has_stopped = True
        self._ended(self._ending, unreached=unreached)
        end_program()

    def _ended(
        self,
        ending: Ending,
        error: str = "",
        problem: TrialError | None = None,
        unreached: tuple[str, ...] = (),
    ) -> None:
        """Keep what is known now; what the program does after its last step does not count."""
        if self._trial is not None:
            return
        request, history = self._request, None
        stopped = None
        if self._ending is not None and ending is not Ending.OUT_OF_MEMORY:
            stopped = problem
            ending, unreached = self._ending, (*self._loops.unreached(), *unreached)
        with suppress(HistoryError):
            history = self._recording.history()
        self._trial = Trial(
            gpu=request.gpu,
            ending=ending,
            error=error,
            problem=problem,
            history=history,
            step_peaks=tuple(self._peaks.all),
            repeated=tuple(self._all_repeated()),
            unreached=unreached,
            stopped=stopped,
            approximations=_approximations(self._machine),
            communicators=tuple(gpu.communicators for gpu in self._machine.gpus),
            gpu_reads=self._reads.all(),
            is_limited=request.is_limited,
            unmet=self._machine.values.assumed.unmet() if self._machine.values else (),
            findings=tuple(change.finding() for change in request.changes),
            files=_files(self._machine),
        )

    def _all_repeated(self) -> Iterator[Repeated]:
        """The steps and the iterations that ended early, with how many did not run in the end."""
        for ended, outermost in self._repeated:
            if outermost is None or ended.total is None:
                yield ended
                continue
            skipped = max(ended.total - outermost.steps, 0)
            yield replace(ended, skipped=skipped, nest=outermost.number)
        for loop in self._loops.unsettled:
            left = None if loop.total is None else max(loop.total - len(loop.ends), 0)
            yield Repeated(
                tuple(loop.ends), loop.total, are_steps=False, skipped=left, nest=loop.number
            )


def _behind(frame: FrameType | None) -> tuple[str, ...]:
    """The calls behind the lines that run now, in the files of the user."""
    calls: list[str] = []
    library = ""
    while frame is not None and frame.f_code is not _Run._repeat.__code__:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if is_of_user(file):
            if library:
                calls.append(f"the rest of {library}()")
            calls += calls_behind(file, frame.f_lineno)
            library = ""
        elif is_of_program(file) and name not in ("step", "wrapper"):
            library = name
        frame = frame.f_back
    return tuple(dict.fromkeys(calls))


def _files(machine: Machine) -> FilesOfRun | None:
    from ..devices.simulated import files_of_run

    return files_of_run(machine.kept_files)


def _approximations(machine: Machine) -> tuple[Approximation, ...]:
    from ..devices.simulated import SimulatedApproximations

    reads = None if machine.values is None else machine.values.reads
    by_key: dict[Any, Approximation] = {}
    for ops in machine.approximations:
        for approximation in SimulatedApproximations(ops, reads).now().values():
            by_key.setdefault(approximation.key, approximation)
    return tuple(by_key.values())
