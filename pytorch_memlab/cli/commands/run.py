"""``pytorch-memlab run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab._common import main_program
from pytorch_memlab._common.optimizer_steps import ProgramDone
from pytorch_memlab._common.switch import SWITCHED_OFF, is_switched_off
from pytorch_memlab.cli import notices
from pytorch_memlab.cli.common_options import report_choice
from pytorch_memlab.cli.configuration import add_configured
from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.cli.run.files import RunFiles
from pytorch_memlab.cli.run.max_peak import MaxPeak
from pytorch_memlab.cli.run.options import add_run_options
from pytorch_memlab.cli.run.sections import CategoryReport, StepLeaks
from pytorch_memlab.cli.run.steps import Steps
from pytorch_memlab.cli.run.tracebacks import without_own_frames
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.cli.run.profile import Profile


class RunCommand:
    """Run a Python program and show the GPU memory used by each line.

    By default all functions of the script and its top level, <module>, are profiled. Use
    --function or @profile to choose. Without a CUDA GPU, a simulated H100 is used (--gpu to
    change).

    The program runs unmodified. The report follows its end, also after an error or Ctrl-C. A ?
    after a line number says that the numbers of this line are a lower bound: the simulation did
    not count all of its memory, or assumed a value that the program read. A ~ says that they
    include an estimate. The notes at the end say what.

    for example:
      pytorch-memlab run train.py --epochs 1
      pytorch-memlab run --gpu 24GiB -f Net.forward -c hits,delta train.py
      pytorch-memlab run -o train.memlab.json -m package.train

    exit codes:
      that of the program, 1 after an error, 0 after --steps; and
      2  the command line cannot be carried out, and nothing ran
      3  the program ended without an error, and reserved more than --max-peak

    Options can also stand in pyproject.toml, in the folder of the script or above it, under their
    long names: in a table [tool.pytorch-memlab], gpu = "t4" and dry-run = true. The command line
    goes before the file. With PYTORCH_MEMLAB=0 in the environment the program runs plainly.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_run_options(parser)

    def prepare(
        self, options: argparse.Namespace, process: ExitStack, /
    ) -> Callable[[], int | None]:
        """Find the script and its functions, and simulate a GPU if that is asked for or needed."""
        from pytorch_memlab.cli.run.oom_report import OutOfMemoryReport
        from pytorch_memlab.cli.run.profile import Profile, profile_in_builtins
        from pytorch_memlab.line_profiler.columns import checked_columns

        if is_switched_off():
            with without_own_frames(process):
                found = _find(options, process)
                main = process.enter_context(found.as_main())
            process.enter_context(profile_in_builtins())
            return partial(_run_plainly, partial(exec, found.code, vars(main)), process)
        parser = CommandParser("pytorch-memlab run", "")
        add_run_options(parser)
        add_configured(options, parser, _folder(options))
        steps = Steps(options.warmup, options.steps)
        limit = MaxPeak(options.max_peak)
        columns = options.columns and checked_columns(options.columns)
        choice = report_choice(options)
        files = RunFiles(options)
        sections = [
            *([CategoryReport()] if options.report else ()),
            *([StepLeaks()] if options.leaks else ()),
        ]
        explanation = OutOfMemoryReport(options.oom_report)
        _simulate(options, process)
        with without_own_frames(process):
            found = _find(options, process)
            main = process.enter_context(found.as_main())
            profile = Profile(
                found,
                options.functions or (),
                columns,
                options.device,
                steps,
                sections,
                keeps_history=files.need_allocations,
                choice=choice,
                saves_history=options.history,
            )
        process.enter_context(profile_in_builtins())
        ending = ExitStack()  # the last of these callbacks comes first
        ending.callback(limit.tell)
        ending.callback(notices.tell_next_steps, files.names)
        asks_for_report = bool(columns or files.has_report or sections)
        ending.callback(profile.finish, files.write, is_asked_for=asks_for_report)
        files.finish_with(ending, profile)
        ending.callback(explanation.finish, profile)
        tell = partial(notices.tell_simulated_gpu, options)
        histories = [files.history] if files.need_history_of_torch or options.leaks else []
        starts: list[Callable[[ExitStack], object]] = [
            explanation.start,
            *(one.start for one in (*histories, *sections)),
            profile.start,
        ]
        program = partial(exec, found.code, vars(main))
        return partial(_run, program, starts, ending, process, tell, profile, limit)


def _run(
    program: Callable[[], None],
    starts: Sequence[Callable[[ExitStack], object]],
    ending: ExitStack,
    process: ExitStack,
    tell: Callable[[], None],
    profile: Profile,
    limit: MaxPeak,
) -> int:
    """Run the program; its tables follow its exception, or else its threads and exit handlers."""
    tell()
    for start in starts:
        start(process)
    process.push(ending)
    with without_own_frames(process):
        try:
            with profile.measuring():
                program()
        except ProgramDone:
            pass  # the rest is as if the program had come to its end
        except BaseException as error:
            has_ended_well = isinstance(error, SystemExit) and not error.code
            is_passed = has_ended_well and limit.is_passed(profile.peaks)
            ending.close()
            if is_passed:
                return DOES_NOT_FIT
            raise
        return DOES_NOT_FIT if limit.is_passed(profile.peaks) else 0


def _run_plainly(program: Callable[[], None], process: ExitStack) -> None:
    """Run the program as ``python`` does."""
    notices.tell(f"{SWITCHED_OFF}: the program runs without a profiler and without a simulation")
    with without_own_frames(process):
        program()


def _simulate(options: argparse.Namespace, process: ExitStack) -> None:
    """Simulate GPUs where an option asks for that, and where there is none."""
    import torch

    from pytorch_memlab.simulation import simulate
    from pytorch_memlab.simulation.inspect import DEFAULT_GPU

    if options.allow_writes and not options.dry_run:
        raise UsageError("--allow-writes is for --dry-run: any other run writes its files")
    is_asked_for = options.gpu is not None or options.dry_run or options.strict
    if not is_asked_for and torch.cuda.is_available():
        for name in ("num_gpus", "cuda_context", "reserve"):
            if getattr(options, name) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} is for simulated GPUs: this machine has a GPU, so give --gpu too"
                )
        return
    process.enter_context(
        simulate(
            options.gpu or DEFAULT_GPU,
            1 if options.num_gpus is None else options.num_gpus,
            compute=not options.dry_run,
            strict=options.strict,
            allow_writes=options.allow_writes,
            context=options.cuda_context,
            others=options.reserve or 0,
        )
    )


def _find(options: argparse.Namespace, process: ExitStack) -> main_program.Program:
    process.enter_context(main_program.first_on_path(_folder(options)))
    return main_program.find(options.script, options.arguments, is_module=options.is_module)


def _folder(options: argparse.Namespace) -> str:
    return main_program.folder_of(options.script, is_module=options.is_module)
