"""The verdicts of ``fit`` on several GPUs, as text and for a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable
from ..fitting.trial import Ending
from ..history.holders import innermost_of_user
from ..profiles.device_verdicts import FitOutcome
from .notes import summary_of_runs
from .page import fill
from .rows import WIDTH, cut, document, padded, place, source_line, wrapped
from .run_notes import after_retries
from .so_far import error_in_short, so_far
from .table import Table

if TYPE_CHECKING:
    from ..fitting.growth import LoopGrowth
    from ..fitting.trial import TrialError
    from ..fitting.verdict import FailedAllocation, FitReport, Verdict
    from ..history.model import Frame

_NAME: Final = 20
_ERROR_LINES: Final = 8
_NARROW_NAME: Final = 15
_LAYOUT: Final = "{}{:>12}{:>12}{:>12}{:>12}  {}"
_NARROW_LAYOUT: Final = "{}{:>11}{:>11}{:>12}{:>12}  {}"
_NARROW_SIZES: Final = 11 + 11 + 12 + 12
_ASSUMED: Final = "assumed at"
HEADS: Final = ("memory", "context", "peak", "left")
PEAK: Final = "peak: the most that PyTorch's allocator takes of the GPU, its cache included"
COLUMNS: Final = (
    f"{PEAK}; left: what is free beside it and the CUDA context, whose size is an estimate"
)
NO_TENSOR: Final = (
    'the program created no CUDA tensor: move the model and its inputs to the device "cuda"'
)


AS_COUNTED: Final = "as counted"

_FITS: Final = {
    "yes": "fits",
    AS_COUNTED: FitOutcome.FITS_AS_COUNTED.value,
    "perhaps": "may fit",
    "so far": "fits so far",
}
"""Answers where a program fits as far as is known, with the words of the heading."""


def text(report: FitReport, *, names_error: bool = True) -> str:
    """The verdicts of all GPUs; ``names_error`` is False where the traceback is shown too."""
    lines = [*heading(report)]
    if report.known and not report.uses_no_gpu:
        lines += ["", *_table(report)]
    errors = list(error_lines(report)) if names_error else []
    for part in (errors, list(failures(report)), list(notes(report))):
        lines += [""] * bool(part)
        lines += [row for line in part for row in wrapped(line)]
    return document(lines)


def _table(report: FitReport) -> Iterator[str]:
    """A row for each GPU; narrower columns make room for the lines whose sizes were assumed."""
    name, layout, verdicts = _NAME, _LAYOUT, report.verdicts
    answers, heading = [*map(answer, verdicts)], "fits"
    if any(_assumed_at(verdict, WIDTH) for verdict in verdicts):
        name, layout = _NARROW_NAME, _NARROW_LAYOUT
        longest = max(map(len, (heading, *answers)))
        room = WIDTH - name - _NARROW_SIZES - longest - 3
        places = [_assumed_at(verdict, room) for verdict in verdicts]
        heading = f"{heading:{longest}} {_ASSUMED}"
        answers = [
            f"{answer:{longest}} {at}".rstrip() for answer, at in zip(answers, places, strict=True)
        ]
    rows = [
        (padded(judged.name, name), *sizes(judged), end)
        for judged, end in zip(verdicts, answers, strict=True)
    ]
    heads, *lines = Table((padded("GPU", name), *HEADS, heading), rows, layout).lines()
    yield heads
    for line, judged, following in zip(lines, verdicts, [*verdicts[1:], None], strict=True):
        yield line
        details = watched(judged)
        if details and (following is None or watched(following) != details):
            yield from wrapped(f"  {details}")
    for unknown in report.unknown:
        yield f"{padded(unknown, name)}{'not reached':>12}"


def _assumed_at(verdict: Verdict, room: int) -> str:
    """The line whose sizes were assumed or given, and how many more; empty without one."""
    places = verdict.trial.assumed_at
    if verdict.fits is None or not places:
        return ""
    more = f" +{len(places) - 1}" if len(places) > 1 else ""
    name = printable(os.path.basename(places[0]))
    short = f"line {name.rpartition(':')[2]}"
    return f"{name}{more}" if len(name + more) <= room else f"{short}{more}"


def heading(report: FitReport) -> Iterator[str]:
    """The program, and the number of GPUs that it fits on."""
    steps = max((len(trial.step_peaks) for trial in report.trials), default=0)
    ran = counted(steps, "step") if steps else "run"
    on_gpus = f" on {report.num_gpus} GPUs" if report.num_gpus > 1 else ""
    yield from wrapped(f"{cut(printable(report.program))}: {ran} without values{on_gpus}")
    verdicts, fitting = report.verdicts, report.fitting
    count = counted(len(verdicts), "GPU")
    if not verdicts:
        yield "nothing is known yet of any GPU"
    elif report.uses_no_gpu:
        yield from wrapped(f"no verdict: {NO_TENSOR}")
    elif report.stopped is not None and not report.fits_somewhere:
        yield from wrapped(f"no verdict: the program stopped with {error_in_short(report.stopped)}")
    elif fitting:
        answers = [*map(answer, fitting)]
        best = next(answer for answer in _FITS if answer in answers)
        best_ones = [judged for judged, text in zip(fitting, answers, strict=True) if text == best]
        smallest = f"{best_ones[0].name} ({prose_size(best_ones[0].capacity)})"
        more = f"; the smallest is {smallest}" if len(verdicts) > 1 else f": {smallest}"
        for other in _FITS:
            if other != best and other in answers:
                more += f"; {other} on {answers.count(other)} more"
        yield from wrapped(f"{_FITS[best]} on {len(best_ones)} of {count}{more}")
    elif not report.known:
        yield f"no verdict: the program failed on {'all ' * (len(verdicts) > 1)}{count}"
    else:
        yield f"fits on none of {count}"


def sizes(verdict: Verdict) -> tuple[str, str, str, str]:
    """The cells under ``HEADS``."""
    memory, context = prose_size(verdict.capacity), prose_size(verdict.taken)
    if verdict.fits is None:
        return memory, context, "", ""
    peak = prose_size(verdict.reserved_peak) + verdict.trial.mark
    return memory, context, peak, signed(verdict.headroom)


def answer(verdict: Verdict) -> str:
    """The verdict in a word or two."""
    if verdict.fits is None:
        return "failed"
    if not verdict.fits:
        return "no"
    if verdict.is_so_far:
        return "so far"
    if verdict.may_not_fit:
        return "perhaps"
    return AS_COUNTED if verdict.trial.needs_unknown else "yes"


def watched(verdict: Verdict) -> str:
    """The parts of a program that were seen, and missed, if it fits so far; empty otherwise."""
    return so_far(verdict.seen) if verdict.is_so_far else ""


def fragment(report: FitReport) -> str:
    """The verdicts for a notebook: a row for each GPU, with a bar of its memory."""
    first, *lines = heading(report)
    verdicts = () if report.uses_no_gpu else report.verdicts
    rows = [(judged.name, sizes(judged), _answer_with_place(judged), judged) for judged in verdicts]
    below = [*error_lines(report), *failures(report), *notes(report)]
    table = ("", HEADS if report.known and verdicts else (), "fits", rows, below)
    return fill("fit.html", heading=first, lines=lines, tables=[table])


def _answer_with_place(verdict: Verdict) -> str:
    place = _assumed_at(verdict, WIDTH)
    text = watched(verdict) or answer(verdict)
    return text + (f", sizes {_ASSUMED} {place}" if place else "")


# Where it fails, and where it does not fit


def error_lines(report: FitReport) -> Iterator[str]:
    """The error of the program, once, below its line."""
    problem = report.problem
    if problem is None:
        return
    names = [verdict.name for verdict in report.verdicts if verdict.fits is None]
    on = f" on {', '.join(names)}" if report.known else ""
    yield from failing_line(problem, on)
    lines = problem.message.splitlines()
    for line in lines[:_ERROR_LINES]:
        yield f"  {printable(line)}"
    if len(lines) > _ERROR_LINES:
        yield f"  and {len(lines) - _ERROR_LINES:,} more lines"


def failing_line(problem: TrialError, on: str = "") -> Iterator[str]:
    """The line of the program that an error came from, and the GPUs on which it is raised."""
    if problem.frame is not None:
        yield cut(f"fails{on} at {_line(problem.frame)}")
    elif on:
        yield cut(f"fails{on}")


def failures(report: FitReport) -> Iterator[str]:
    """The places where memory runs out, each with its GPUs."""
    names: dict[tuple[str, int], list[str]] = {}
    for verdict in report.verdicts:
        if verdict.failure is not None:
            names.setdefault((_place(verdict.failure), verdict.failure.size), []).append(
                verdict.name
            )
    for (where, size), gpu_names in names.items():
        yield cut(f"out of memory at {where}")
        yield f"  asks for {prose_size(size)} on {', '.join(gpu_names)}"
    for verdict in report.verdicts:
        if verdict.fits and verdict.retries:
            so_far = " so far" * verdict.is_so_far
            how = after_retries(verdict.retries, verdict.with_room)
            yield from wrapped(f"{verdict.name}: fits{so_far}{how}")
    yield from _growing(report)
    for verdict in report.verdicts:
        if verdict.may_not_fit:
            room, more = prose_size(verdict.room), prose_size(verdict.needed_at_most)
            of_nccl = ", NCCL's memory among it" if verdict.nccl.high else ""
            yield from wrapped(
                f"{verdict.name}: perhaps: {room} free, up to {more} not counted{of_nccl}"
            )
    yield from on_devices(report.verdicts)


def on_devices(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """The parts of what ``nvidia-smi`` shows at the peak, where NCCL has one."""
    rows = [verdict for verdict in verdicts if verdict.fits and verdict.nccl.high]
    if not rows:
        return
    yield "what nvidia-smi shows at the peak; left is the rest"
    heads = (padded("GPU", _NARROW_NAME), "allocator", "context", "NCCL", "in all", "NCCL from, to")
    cells = [
        (
            padded(row.name, _NARROW_NAME),
            prose_size(row.reserved_peak) + row.trial.mark,
            prose_size(row.taken),
            f"{prose_size(row.nccl.estimate)}~",
            f"{prose_size(row.on_device.estimate)}~",
            f"{prose_size(row.nccl.low)}, {prose_size(row.nccl.high)}",
        )
        for row in rows
    ]
    yield from Table(heads, cells, "{}{:>12}{:>11}{:>11}{:>11}  {}").lines()


def _growing(report: FitReport) -> Iterator[str]:
    """The line whose memory grows with every step, and the step at which each GPU is full."""
    growing = [verdict for verdict in report.verdicts if verdict.growth is not None]
    for repeated in growing[:1]:
        assert repeated.growth is not None
        where = (
            _line(innermost_of_user(repeated.growth.stack))
            if repeated.growth.stack
            else "an unknown line"
        )
        unit = _unit(repeated.growth)
        how_often = (
            f"{_article(unit)} {unit}"
            if repeated.growth.cycle == 1
            else f"every {repeated.growth.cycle} {unit}s"
        )
        holder = repeated.growth.repeated.holder
        held = f" ({printable(holder)})" if holder else ""
        yield cut(f"grows by {prose_size(repeated.growth.nbytes)} {how_often}{held} at {where}")
    for repeated in growing:
        assert repeated.growth is not None
        total, last = repeated.growth.repeated.total, repeated.growth.last_step
        unit = _unit(repeated.growth)
        if repeated.growth.is_over:
            assert total is not None
            yield f"  the loop ends after {counted(total, unit)} on {repeated.name}"
        elif last is not None:
            of = "" if total is None else f" of {total:,}"
            end = ", if it goes on" if repeated.fits else ""
            yield f"  out of memory at {unit} {last:,}{of} on {repeated.name}{end}"


def _article(unit: str) -> str:
    return "a" if unit == "step" else "an"


def _unit(growth: LoopGrowth) -> str:
    return "step" if growth.repeated.are_steps else "iteration"


def _place(failure: FailedAllocation) -> str:
    """The innermost line of the program, and its source."""
    return _line(innermost_of_user(failure.stack)) if failure.stack else "an unknown line"


def _line(frame: Frame) -> str:
    """A line of the program, and its source."""
    source = printable(source_line(frame.filename, frame.line))
    return place(*frame, " in ") + (f": {source}" if source else "")


# Notes


def notes(report: FitReport) -> Iterator[str]:
    """Notes on the numbers."""
    if report.uses_no_gpu:
        return
    if any(verdict.fits is not None for verdict in report.verdicts):
        yield COLUMNS
    graphs = sorted({verdict.private for verdict in report.verdicts if verdict.private})
    if graphs:
        sizes = " to ".join(map(prose_size, dict.fromkeys((graphs[0], graphs[-1]))))
        yield f"{sizes} of the peak: reserved by CUDA graphs; no other code gets what is free there"
    yield from _about_steps(report)
    yield from summary_of_runs(report.trials)


def _about_steps(report: FitReport) -> Iterator[str]:
    trials = report.trials
    endings = {trial.ending for trial in trials}
    if Ending.SETTLED in endings and not any(trial.unreached for trial in trials):
        yield (
            "loops ended early where their peak repeated, and the program went on behind them"
            " (--steps N ends them after N optimizer steps)"
        )
    missed = [trial for trial in trials if trial.unreached and trial.ending is Ending.SETTLED]
    if missed:
        yield (
            f"the loops ended after {counted(len(missed[0].step_peaks), 'step')}, where their peak"
            " repeated: --steps N runs N, which may reach more of the program"
        )
    if Ending.STEPS in endings:
        yield f"the loops ended after --steps {report.steps}, before the peak repeated"
    if Ending.UNSETTLED in endings:
        trial = next(trial for trial in trials if trial.ending is Ending.UNSETTLED)
        peaks = [max(step_peak.requested) for step_peak in trial.step_peaks[1:]]
        yield (
            f"the peak did not repeat within {len(trial.step_peaks)} steps: their requests are"
            f" {prose_size(min(peaks))} to {prose_size(max(peaks))}"
            " (--steps N runs N steps)"
        )
