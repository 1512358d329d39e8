"""Run a Python program and show the GPU memory used by each line.

By default all functions of the script and its top level, <module>, are profiled. Use
--function or @profile to choose. Without a CUDA GPU, a simulated H100 is used (--gpu to
change).

The program runs unmodified. The report follows its end, also after an error or Ctrl-C. A ?
after a line number says that the numbers of this line are a lower bound: the simulation did
not count all of its memory. A * says that they rest on values that a dry run does not have:
on a size that it assumed, mostly as an upper bound, or that --assume gave, or on a value that
the program read. A ~ says that they include an estimate. The notes at the end say what.

for example:
  pytorch-memlab run train.py --epochs 1
  pytorch-memlab run --gpu 24GiB -f Net.forward -c hits,delta train.py
  pytorch-memlab run -o train.memlab.json -m package.train
  pytorch-memlab run -o job.memlab -- torchrun --nproc-per-node 4 train.py

exit codes:
  that of the program, 1 after an error, 0 after --steps; and
  1  in place of 0, a file could not be written: the tables are printed
  2  the command line cannot be carried out, and nothing ran; or --max-peak has
     no verdict, because the program used no memory of a GPU
  3  the program ended without an error, and reserved more than --max-peak
  Of several, the first counts: the signal that ended the program, its own
  code if that is not 0, 3 or 2, 1.

Options can also stand in pyproject.toml, in the folder of the script or above it, under their
long names: in a table [tool.pytorch-memlab], gpu = "t4" and dry-run = true. The command line
goes before the file. With PYTORCH_MEMLAB=0 in the environment the program runs plainly.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..._common.patching.patches import Patches
from ..._common.process import main_program
from ..._common.process.own_frames import without_own_frames
from ..._common.process.ranks import this_rank
from ..._common.process.switch import SWITCHED_OFF, is_switched_off
from ...columns import COLUMNS
from ...errors import MemlabError, UsageError
from ...jobs.launch_names import is_launcher
from ...simulation.inspect import DEFAULT_GPU
from .. import notices
from ..common_options import (
    GPU_SPEC,
    add_allow_writes,
    add_assume,
    add_functions_and_columns,
    add_memory_overhead,
    add_output_files,
    add_private,
    add_program,
    add_report_options,
    assumptions,
    memory_overhead,
    number_from,
    number_of_gpus,
    report_choice,
    simulated_gpus,
)
from ..configuration import add_configured
from ..ending_signals import EndingSignals, requests_to
from ..parser import CommandParser
from ..process import CommandProcess
from ..run.steps import Steps

if TYPE_CHECKING:
    from ...jobs.attached import AttachedProcess
    from ...profiles.overview import Choice
    from ..run.files import OutOfMemoryReport, RunFiles
    from ..run.max_peak import MaxPeak
    from ..run.program_profile import Profile
    from ..run.remedies import RemedyTrials
    from ..run.sections import CategoryReport, StepLeaks
    from ..run.started_ranks import StartedRanks


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.set_defaults(job_is_temporary=False)  # true in ranks that a program started
    parser.hint_on_unknown = "; options of the script go after it: run SCRIPT ARGS"
    add_program(parser.group("what to run"), "; - for standard input")

    _add_profile_options(parser)
    _add_output_options(parser)
    _add_simulation_options(parser)


def _add_profile_options(parser: CommandParser) -> None:
    described = ", ".join(f"{column.name} ({column.text})" for column in COLUMNS)
    add = parser.group("what to profile")
    add_functions_and_columns(
        add,
        "profile only these: a function, class or method of the script (Net.forward), a"
        " method of any class (forward), a pattern ('Block.*'), or one of another module:"
        " package.module:Net.forward imports the module before the script runs,"
        " 'package.*:*.forward' waits until the script imports those that match. Separated by"
        " commas, repeatable",
        "show tables of these columns, with every line, instead of the report; with --top,"
        f" --sort or --all the report has them. They are {described},"
        " and any field of torch.cuda.memory_stats(), such as"
        " allocated_bytes.all.peak; separated by commas, repeatable"
        " (default: peak,kept,temporary)",
    )
    add(
        "--device DEVICE", "measure this device only, such as cuda:1 (default: every device in use)"
    )
    add(
        "--warmup N",
        "leave the first N optimizer steps out of the numbers (default: 0)",
        type=number_from(0, "optimizer steps"),
    )
    add(
        "--steps N",
        "end the program after N optimizer steps (not counting the warm-up), with exit code"
        " 0, as if it had finished (default: let it finish)",
        type=number_from(1, "optimizer steps"),
    )


def _add_output_options(parser: CommandParser) -> None:
    add = parser.group("output")
    add_report_options(add)
    add_output_files(
        add,
        "write a file, and print the headline alone: the report (.txt), a page to explore in a"
        " browser, with the code and the memory over time (.html), everything that was recorded,"
        " for pytorch-memlab show, top, diff and merge (.json), the memory history of the run in"
        " PyTorch's own format, for pytorch-memlab peak, timeline and pytorch.org/memory_viz"
        " (.pickle), a picture of the memory over time (.svg or .png; needs matplotlib),"
        " or the folder of a job (.memlab), with a profile of each rank that is kept up to date,"
        " so that it is there also after a kill; repeatable. {rank} and {pid} are filled in; each"
        " process that torchrun, srun or another launcher starts writes its own file, such as"
        " out.rank0.html",
    )
    add(
        "--save-every SECONDS",
        "how often each process writes its file in the folder of the job; SIGUSR1 makes it do so"
        " at once (default: 30)",
        type=number_from(1, "seconds"),
    )
    add(
        "--report",
        "show what holds the memory at the end and at the peak, by category: parameters,"
        " gradients, optimizer state, buffers, activations",
        action="store_true",
    )
    add(
        "--leaks",
        "show the variables whose memory grows with every step of the optimizer, with the"
        " line that allocates it; looking takes time after the first steps, then ever less often",
        action="store_true",
    )
    add(
        "--history",
        "keep every allocation and free in the .json file: some 10 bytes for each",
        action="store_true",
    )
    add(
        "--history-max N",
        "keep only the last N allocations and frees of each device, so that a long run does not"
        " take more and more host memory; a note tells how many there were (default: keep all)",
        type=number_from(1, "events"),
    )
    add("--force", "overwrite the .json or .pickle file of an older run", action="store_true")
    add_private(add, "all files")
    add(
        "--max-peak SIZE",
        "exit with 3 if PyTorch reserves more than this on a GPU, such as 20GiB. The CUDA"
        " context comes on top of it",
    )
    add(
        "--oom-report FILE",
        "if the program runs out of GPU memory, write the explanation that follows its"
        " traceback to a file too: text, or data if its name ends in .json",
    )


def _add_simulation_options(parser: CommandParser) -> None:
    add = parser.group("simulation")
    add(
        f"--gpu {GPU_SPEC}",
        "simulate this GPU, also where there is a real one: a name (t4, rtx4090, a100, h100),"
        " its memory (24GiB), or a TOML file with its name, memory, compute_capability and"
        f" multiprocessors (default: the GPU of this machine, or {DEFAULT_GPU} if it has none)",
    )
    add(
        "--num-gpus N",
        "number of GPUs to simulate (default: 1, or as many as a launcher starts ranks here)",
        type=number_of_gpus,
    )
    add(
        "--dry-run",
        "simulate shapes only: nothing is computed and tensors take no host memory, so that a"
        " step of any model takes seconds or minutes. Lines that read values are marked. No file"
        " or folder that is there is changed, removed or renamed, and no file of tensors is"
        " written; the script sees its own changes until it ends. Everything else that the script"
        " does happens: it makes new folders and files, starts commands, and uses the network",
        action="store_true",
    )
    add_allow_writes(add)
    add_assume(add)
    add_memory_overhead(add, "simulated GPU")
    add(
        "--no-try",
        "do not try remedies when the program runs out of memory, nearly fills the GPU, or its"
        " memory grows. By default, it runs again with each of them, in other processes, for at"
        " most 30 s",
        action="store_true",
    )
    add(
        "--advice",
        "also if the program fits with room: try all that may lower its peak, and show what does",
        action="store_true",
    )
    add(
        "--strict",
        "simulate, and fail at the first line that would be marked ? or *: memory is not counted,"
        " or a dry run assumes a value or a size",
        action="store_true",
    )
    # A separate value would be taken for the script.
    add(
        "--strict=estimates",
        "simulate, and fail at the first line that would be marked ?, * or ~ (an estimate is"
        " counted)",
        dest="strict",
        action="store_const",
        const="estimates",
    )
    # Options that shipped under these names keep them, unseen.
    add("--count", argparse.SUPPRESS, dest="num_gpus", type=number_of_gpus)
    add("--context", argparse.SUPPRESS, dest="cuda_context")
    add("--others", argparse.SUPPRESS, dest="reserve")


def prepare(options: argparse.Namespace, process: CommandProcess, /) -> Callable[[], int | None]:
    from ..run.program_profile import put_profile_in_builtins

    if is_switched_off():
        with without_own_frames(process):
            process.allow_interrupts()
            program = _find(options, process)
            main = process.enter_context(program.as_main())
        put_profile_in_builtins(process)
        return partial(_run_plainly, partial(exec, program.code, vars(main)), process)
    parser = CommandParser("pytorch-memlab run", "")
    add_arguments(parser)
    if is_launcher(options.script, is_module=options.is_module):
        from ..run.launched_job import prepared_launch

        return prepared_launch(options, parser, process)
    add_configured(options, parser, _folder(options))
    return _prepared(options, process, parser, None)


def recorded_call(options: argparse.Namespace, call: Callable[[], object]) -> object:
    """Call a function of the program as ``run`` runs a program, in a process that another made."""
    results = []
    with CommandProcess() as process:
        try:
            work = _prepared(options, process, None, lambda: results.append(call()))
        except MemlabError as error:
            notices.tell(f"rank {this_rank().rank} is not profiled: {error}")
            work = None
        status = 0 if work is None else work()
    if work is None:
        return call()
    status = status or process.late_status
    if status:
        raise SystemExit(status)
    return results[0] if results else None  # --steps ended it


@dataclass(frozen=True, slots=True)
class _RunParts:
    """The parts of a run that its options decide, checked before there is a program."""

    steps: Steps
    limit: MaxPeak
    columns: tuple[str, ...] | None
    choice: Choice | None
    files: RunFiles
    sections: list[CategoryReport | StepLeaks]
    remedies: RemedyTrials | None  # None if the program cannot run once more
    explanation: OutOfMemoryReport


def _parts_of(options: argparse.Namespace, *, runs_again: bool) -> _RunParts:
    from ...line_profiler.columns import checked_columns
    from ..run.files import OutOfMemoryReport, RunFiles
    from ..run.max_peak import MaxPeak
    from ..run.sections import CategoryReport, StepLeaks

    steps = Steps(options.warmup, options.steps)
    limit = MaxPeak(options.max_peak)
    columns = options.columns and checked_columns(options.columns)
    choice = report_choice(options)
    files = RunFiles(options)
    sections = [
        *([CategoryReport()] if options.report else ()),
        *([StepLeaks()] if options.leaks else ()),
    ]
    remedies = _remedy_trials(options, steps) if runs_again else None
    explanation = OutOfMemoryReport(options.oom_report, remedies, is_private=options.private)
    return _RunParts(steps, limit, columns, choice, files, sections, remedies, explanation)


def _prepared(
    options: argparse.Namespace,
    process: CommandProcess,
    parser: CommandParser | None,
    call: Callable[[], object] | None,
) -> Callable[[], int]:
    """Check everything for a program, or for a call in a process that its program started."""
    # Such a process has no parser, is simulated already, and cannot run its part once more.
    from ...jobs.attached import AttachedProcess
    from ..run.program_profile import Profile, put_profile_in_builtins
    from ..run.program_run import run_program
    from ..run.started_ranks import StartedRanks

    parts = _parts_of(options, runs_again=parser is not None)
    files = parts.files
    process.allow_interrupts()
    if parser is not None:
        with without_own_frames(process):
            _simulate(options, process)
    ranks = None if parser is None else StartedRanks(options, parser, files, recorded_call)
    with without_own_frames(process):
        if call is None:
            program = _find(options, process)
            call = partial(exec, program.code, vars(process.enter_context(program.as_main())))
        else:
            program = main_program.with_running_codes(_program_of(options))
        profile = Profile(
            program,
            options,
            parts.columns,
            parts.choice,
            parts.steps,
            parts.sections,
            keeps_history=files.need_allocations,
        )
    if parser is not None:
        notices.tell_options_after_program(parser, options, program.source)
    put_profile_in_builtins(process)
    attached = AttachedProcess(profile, files)
    ending = _ending(options, process, parts, profile, ranks, attached)
    starts = _starts(options, parts, profile, ranks, attached)
    requests: dict[int, Callable[[], None]] = {}
    if files.black_box is not None:
        requests = requests_to(files.black_box.save_now)

    def are_written() -> bool:
        return files.are_written and parts.explanation.is_written

    signals = EndingSignals(requests)
    return partial(
        run_program, call, starts, ending, process, profile, parts.limit, are_written, signals
    )


def _ending(
    options: argparse.Namespace,
    process: ExitStack,
    parts: _RunParts,
    profile: Profile,
    ranks: StartedRanks | None,
    attached: AttachedProcess,
) -> ExitStack:
    """The reports and files that follow the program; the last of these callbacks comes first."""
    files, remedies = parts.files, parts.remedies
    ending = ExitStack()
    ending.callback(attached.stop_answering)  # a signal ends the process before others close
    own_path = process.enter_context(Patches())
    ending.callback(own_path.undo)
    ending.callback(parts.limit.tell)
    if ranks is None:
        write, have_started = files.write, lambda: False
    else:
        script = "" if options.is_module else options.script
        ending.callback(notices.tell_next_steps, files.names, script)
        ending.callback(ranks.finish)
        write, have_started = ranks.write, lambda: ranks.have_started
    parts.limit.is_of_ranks = have_started
    asks_for_report = bool(parts.columns or files.has_report or parts.sections)
    if remedies is not None:
        ending.callback(remedies.tell_best, profile)
    ending.callback(profile.finish, write, have_started, is_asked_for=asks_for_report)
    files.finish_with(ending, profile)
    ending.callback(parts.explanation.finish, profile)
    # What the report imports is found also if the program took folders off the path.
    ending.callback(own_path.set, sys, "path", list(sys.path))
    return ending


def _starts(
    options: argparse.Namespace,
    parts: _RunParts,
    profile: Profile,
    ranks: StartedRanks | None,
    attached: AttachedProcess,
) -> list[Callable[[ExitStack], object]]:
    """The functions that begin their work right before the program, in this order."""
    files = parts.files
    histories = [files.history] if files.need_history_of_torch or options.leaks else []
    starts: list[Callable[[ExitStack], object]] = [
        parts.explanation.start,
        *(recorder.start for recorder in (*histories, *parts.sections)),
        profile.start,
        *([] if ranks is None else [ranks.start]),
        attached.start,
    ]
    if ranks is not None:  # the ranks that a program starts tell nothing
        starts.insert(0, lambda _process: notices.tell_simulated_gpu(options))
    if files.black_box is not None:
        black_box = files.black_box
        starts.append(lambda process: black_box.start(process, profile.recorded))
    return starts


def _run_plainly(program: Callable[[], None], process: ExitStack) -> None:
    notices.tell(f"{SWITCHED_OFF}: the program runs without a profiler and without a simulation")
    with without_own_frames(process):
        program()


def _simulate(options: argparse.Namespace, process: ExitStack) -> None:
    """Simulate GPUs where an option asks for that, and where there is none."""
    import torch

    from ...devices.why_no_gpu import why_no_gpu
    from ...simulation import simulate

    if options.allow_writes and not options.dry_run:
        raise UsageError("--allow-writes is for --dry-run: any other run writes its files")
    if options.assume and not options.dry_run:
        raise UsageError("--assume is for --dry-run: any other run computes the sizes")
    is_asked_for = options.gpu is not None or options.dry_run or options.strict
    if not is_asked_for and torch.cuda.is_available():
        for name in ("num_gpus", "cuda_context", "reserve"):
            if getattr(options, name) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} is for simulated GPUs: this machine has a GPU, so give --gpu too"
                )
        return
    context, others = memory_overhead(options)
    options.why_simulated = "" if is_asked_for else why_no_gpu()
    process.enter_context(
        simulate(
            DEFAULT_GPU if options.gpu is None else options.gpu,
            simulated_gpus(options),
            compute=not options.dry_run,
            strict=options.strict,
            allow_writes=options.allow_writes,
            context=context,
            others=others,
            assume=assumptions(options),
        )
    )


def _remedy_trials(options: argparse.Namespace, steps: Steps) -> RemedyTrials | None:
    """Trials of remedies; None if they are switched off, or the program cannot run twice."""
    if options.no_try or options.script == "-":
        return None
    from ..run.remedies import RemedyTrials, trial_program

    program = partial(trial_program, options, steps, os.getcwd(), dict(os.environ))
    return RemedyTrials(program, asks_for_all=options.advice)


def _find(options: argparse.Namespace, process: ExitStack) -> main_program.Program:
    process.enter_context(main_program.first_on_path(_folder(options)))
    return _program_of(options)


def _program_of(options: argparse.Namespace) -> main_program.Program:
    """The program whose function a process calls that it started."""
    return main_program.find(options.script, options.arguments, is_module=options.is_module)


def _folder(options: argparse.Namespace) -> str:
    return main_program.folder_of(options.script, is_module=options.is_module)
