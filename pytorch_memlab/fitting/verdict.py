"""The verdicts on GPUs: the recorded allocations on a GPU of that memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from .._common.text.displayed import Displayed
from ..history.holders import innermost_of_user
from ..history.model import AllocationHistory, Stack
from ..history.replay import ReplayResult, replay
from ..records import Approximation
from ..simulation.inspect import GPU, Bounds, nccl_memory
from .growth import LoopGrowth, growing_loops, growth_of, rise_to_the_end
from .trial import Ending, Settings, Trial, TrialError

NO_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The first request that a GPU has no room for."""

    size: int
    stack: Stack
    message: str


@dataclass(frozen=True, slots=True)
class PartSeen:
    """The part of a program that a trial saw, where the rest may need more."""

    steps: int
    unreached: tuple[str, ...] = ()  # the calls that did not run, such as ``evaluate()``
    stopped: TrialError | None = None  # the error of what follows the loops that ended early
    is_settled: bool = True  # whether these loops repeated, or grow evenly to a known end
    grows: bool = False  # whether they grow evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one GPU."""

    name: str
    gpu: GPU
    trial: Trial
    fits: bool | None  # None if the program failed, so that it is not known
    device: int  # index of the GPU of the program that has least memory left
    # highest bytes that the allocator takes from that GPU, those of growing steps that did not run
    # included; where the program does not fit, those that it takes from a GPU without limit
    reserved_peak: int
    active_peak: int  # highest bytes of all blocks in use, as ``reserved_peak``
    taken: int  # bytes that the allocator does not get: the CUDA context, other processes
    failure: FailedAllocation | None = None  # the request that fails; None if the program fits
    # how often the allocator empties its cache to serve a request, and the highest bytes that it
    # takes from a GPU on which it need not; None if it never does
    retries: int = 0
    with_room: int | None = None
    private: int = 0  # bytes of ``reserved_peak`` in private pools, such as of CUDA graphs
    nccl: Bounds = NO_BOUNDS  # what NCCL takes of the GPU, which is no part of ``taken``
    growth: LoopGrowth | None = None  # of a program whose steps leave more and more memory
    is_settled: bool = True  # whether all loops that ended early repeated, or grow evenly

    @property
    def is_so_far(self) -> bool:
        """True if the program fits as long as it was watched, and may not later."""
        is_whole = not self.trial.unreached and self.trial.stopped is None
        return bool(self.fits) and not (self.is_settled and is_whole)

    @property
    def seen(self) -> PartSeen:
        """The part of the program that its trial saw."""
        trial, grows = self.trial, self.growth is not None
        return PartSeen(
            len(trial.step_peaks), trial.unreached, trial.stopped, self.is_settled, grows
        )

    @property
    def needed_at_most(self) -> int:
        """Bytes without which the program may fail and that no peak has, as far as is known."""
        return self.trial.needed_at_most + self.nccl.high

    @property
    def may_not_fit(self) -> bool:
        """True if there may be no room for NCCL, or for what is not counted, such as cuFFT's."""
        return bool(self.fits) and self.needed_at_most > self.room

    @property
    def on_device(self) -> Bounds:
        """All that any process has at the peak, as the driver and ``nvidia-smi`` show it."""
        measured = self.reserved_peak + self.taken
        return Bounds(measured, measured, measured) + self.nccl

    @property
    def answer(self) -> str:
        """The verdict in a word or two."""
        if self.fits is None or (self.fits and self.trial.stopped is not None):
            return "unknown"
        if not self.fits:
            return "does not fit"
        return "so far" if self.is_so_far else "may not fit" if self.may_not_fit else "fits"

    @property
    def capacity(self) -> int:
        return self.gpu.total_memory

    @property
    def room(self) -> int:
        """Bytes beside the peak and the CUDA context; negative for those that lack."""
        return self.capacity - self.taken - self.reserved_peak

    @property
    def headroom(self) -> int:
        """Bytes of that room that NCCL leaves, by its estimate; negative for those that lack."""
        return self.room if self.room < 0 else max(self.room - self.nccl.estimate, 0)


@dataclass(frozen=True, slots=True)
class FitReport(Displayed):
    """The verdicts on a program for several GPUs."""

    program: str
    verdicts: tuple[Verdict, ...]  # those that are known, by the memory of the GPU
    unknown: tuple[str, ...] = ()
    num_gpus: int = 1
    steps: int | None = None  # optimizer steps that were asked for; None for until the peak repeats

    @property
    def fitting(self) -> tuple[Verdict, ...]:
        """Those of the GPUs that the program fits on."""
        return tuple(verdict for verdict in self.verdicts if verdict.fits)

    @property
    def fits_somewhere(self) -> bool:
        """True if a GPU fits the whole program, so far as its end was reached or repeats."""
        return any(
            verdict.fits and not verdict.is_so_far and not verdict.may_not_fit
            for verdict in self.verdicts
        )

    @property
    def error(self) -> str:
        """The traceback of the program's error on a GPU; empty if it ran on all of them."""
        return next((verdict.trial.error for verdict in self.verdicts if verdict.fits is None), "")

    @property
    def problem(self) -> TrialError | None:
        """That error in short; None if the program ran on all of them."""
        return next(
            (verdict.trial.problem for verdict in self.verdicts if verdict.fits is None), None
        )

    @property
    def stopped(self) -> TrialError | None:
        """The error that came after loops that ended early; None without one."""
        errors = [verdict.trial.stopped for verdict in self.fitting]
        return next((error for error in errors if error is not None), None)

    @property
    def uses_no_gpu(self) -> bool:
        """True if the program ran and created no tensor on a GPU: nothing can be said of it."""
        return bool(self.fitting) and not any(verdict.reserved_peak for verdict in self.verdicts)

    @property
    def known(self) -> tuple[Verdict, ...]:
        """The verdicts on the GPUs on which the program ran."""
        return tuple(verdict for verdict in self.verdicts if verdict.fits is not None)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The runs that the verdicts are of."""
        return tuple({id(verdict.trial): verdict.trial for verdict in self.verdicts}.values())

    @property
    def approximations(self) -> tuple[Approximation, ...]:
        """Approximations of all runs, each once."""
        by_key = {
            approximation.key: approximation
            for trial in self.trials
            for approximation in trial.approximations
        }
        return tuple(by_key.values())

    def rows(self) -> list[dict[str, Any]]:
        """One row for each GPU: sizes are bytes."""
        return [_row(verdict) for verdict in self.verdicts]


def _row(verdict: Verdict) -> dict[str, Any]:
    failure = verdict.failure
    frame = innermost_of_user(failure.stack) if failure and failure.stack else None
    return {
        "gpu": verdict.name,
        "fits": None if verdict.is_so_far else verdict.fits,
        "verdict": verdict.answer,
        "capacity": verdict.capacity,
        "context": verdict.taken,
        "peak": verdict.reserved_peak,
        "active_peak": verdict.active_peak,
        "graphs": verdict.private,
        "nccl": verdict.nccl.estimate,
        "nccl_at_least": verdict.nccl.low,
        "nccl_at_most": verdict.nccl.high,
        "on_device": verdict.on_device.estimate,
        "headroom": verdict.headroom,
        "fails_at": f"{frame.filename}:{frame.line}" if frame else "",
        "request": 0 if failure is None else failure.size,
        "assumed_at": ", ".join(verdict.trial.assumed_at),
    }


def verdict(trial: Trial, gpu: GPU, name: str, settings: Settings) -> Verdict:
    """The verdict of a trial on a GPU that runs the program as the trial did."""
    taken, history = settings.taken(gpu), trial.history
    limited = unlimited = failure = None
    if history is not None:
        replays = []
        for device in (device_history.device for device_history in history.devices):
            outcome = replay(history, device, capacity=gpu.total_memory, taken=taken)
            ran_out = outcome.out_of_memory is not None
            has_limit = ran_out or bool(outcome.retries)
            replays.append((outcome, replay(history, device) if has_limit else outcome))
        limited, unlimited = min(replays, key=_room, default=(None, None))
        failure = None if limited is None else _failed(trial, history, limited)
    has_failed = trial.ending is Ending.OUT_OF_MEMORY and failure is None
    fits = None if trial.failed or has_failed else failure is None
    figures = unlimited if fits is False else limited
    retries = 0 if limited is None else limited.retries or 0
    growing = [] if fits is None or limited is None else _growing(trial, limited, gpu, taken)
    growth = min((growth for growth in growing if growth is not None), key=_last_step, default=None)
    later = sum(growth.later for growth in growing if growth is not None)
    has_room = figures is not None and figures.peak_reserved + later <= gpu.total_memory - taken
    device = 0 if limited is None else limited.device
    communicators = trial.communicators[device] if device < len(trial.communicators) else ()
    return Verdict(
        name=name,
        gpu=gpu,
        trial=trial,
        fits=fits,
        device=device,
        nccl=nccl_memory(gpu, communicators),
        reserved_peak=0 if figures is None else figures.peak_reserved + later * bool(fits),
        active_peak=0 if figures is None else figures.peak_active,
        taken=taken,
        private=0 if figures is None else figures.private_at_peak,
        failure=failure,
        retries=retries,
        with_room=unlimited.peak_reserved if unlimited is not None and retries else None,
        growth=growth,
        is_settled=all(growth is not None and growth.is_over and has_room for growth in growing),
    )


def _growing(trial: Trial, limited: ReplayResult, gpu: GPU, taken: int) -> list[LoopGrowth | None]:
    """The growth of each loop that ended early though it did not repeat; None where uneven."""
    history, capacity = trial.history, gpu.total_memory
    assert history is not None
    repeated = growing_loops(history, limited.device, trial.repeated)
    if limited.out_of_memory is not None:
        # Of the loop in which memory runs out, what came before that.
        times = history.of_device(limited.device).events.times
        failed = times[min(limited.out_of_memory.index, len(times) - 1)]
        ends = {repeated.nest: repeated.ends[-1] for repeated in trial.repeated}
        repeated = [
            loop.until(failed) for loop in repeated if loop.ends[0] < failed <= ends[loop.nest]
        ]
    return [
        growth_of(history, limited.device, loop, capacity=capacity, taken=taken)
        for loop in repeated
    ]


def _last_step(growth: LoopGrowth) -> float:
    return math.inf if growth.last_step is None else growth.last_step


def _failed(
    trial: Trial, history: AllocationHistory, limited: ReplayResult
) -> FailedAllocation | None:
    """The request that ends the program; None if the program fits."""
    failures = limited.failures
    if trial.ending is not Ending.OUT_OF_MEMORY:
        # A failure that the run on this very memory had too is one that the program went on after.
        failures = tuple(failure for failure in failures if not failure.was_recorded)
    if not failures:
        return None
    last = failures[-1]
    stack = history.of_device(limited.device).events.stacks[last.index]
    return FailedAllocation(last.size, history.stacks[stack], last.message)


def _room(replays: tuple[ReplayResult, ReplayResult]) -> tuple[bool, int]:
    limited, unlimited = replays
    return limited.out_of_memory is None, -unlimited.peak_reserved


def with_room(limited: Trial, roomy: Trial) -> Trial:
    """The run without a limit, where it stands for one that ran out of memory; else that one."""
    # It stands for it if both made the same requests until then: how much memory there is decided
    # nothing.
    if limited.ending is not Ending.OUT_OF_MEMORY or roomy.failed:
        return limited
    made, whole = requests_of(limited), requests_of(roomy)
    is_alike = made.keys() == whole.keys() and all(
        whole[device][: len(sizes)] == sizes for device, sizes in made.items()
    )
    return roomy if is_alike else limited


def requests_of(trial: Trial) -> dict[int, list[int]]:
    """The sizes of all allocations that were made, in order, by GPU."""
    devices = [] if trial.history is None else trial.history.devices
    return {
        device.device: [device.events.sizes[index] for index in device.events.indexes("alloc")]
        for device in devices
    }


def rise_of_peak(trial: Trial, device: int) -> int | None:
    """Bytes by which loops that ended early raise the peak; None for a part that did not run."""
    if trial.unreached or trial.stopped is not None or trial.history is None:
        return None
    return rise_to_the_end(trial.history, device, trial.repeated)


_NEARLY = 512
"""Parts of the peak; ``needed_memory`` is found to one of them."""


def needed_memory(trial: Trial, device: int) -> int:
    """The least memory with which a program fits, by replays, to a 512th of it."""
    # It lies between the bytes in use and the bytes reserved without limit: close to full, the
    # allocator gives cached memory back.
    assert trial.history is not None
    unlimited = replay(trial.history, device)
    low, high = unlimited.peak_active, unlimited.peak_reserved
    while high - low > high // _NEARLY:
        middle = (low + high) // 2
        if replay(trial.history, device, capacity=middle).failures:
            low = middle
        else:
            high = middle
    return high
