"""``pytorch-memlab run``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from pytorch_memlab.cli import notices, program
from pytorch_memlab.cli.output import writer_to
from pytorch_memlab.cli.program import Program
from pytorch_memlab.cli.tracebacks import without_own_frames
from pytorch_memlab.errors import UsageError
from pytorch_memlab.line_profiler.columns import DEFAULT_COLUMNS, checked_columns

if TYPE_CHECKING:
    from pytorch_memlab.cli.profiling import Profile

DEFAULT_GPU = "h100"


class RunCommand:
    """Run a script and show the GPU memory of its lines.

    The script runs unmodified, with its own arguments and exit code. By default all functions that
    it defines are profiled, and its top level as <module>. Functions that are decorated with
    @profile or named with -f are profiled alone. On a machine without a CUDA GPU, one is simulated;
    --gpu, --dry-run and --strict simulate one also where there is a real one.

    Behind a line's number, ? says that a simulation did not count all memory there, so that the
    numbers are lower bounds, or that it assumed a value; ~ says that it counted an estimate. The
    lines below the table name what.

    For example:

      pytorch-memlab run train.py --epochs 1
      pytorch-memlab run --gpu 24GiB -f Net.forward -c hits,delta train.py
      pytorch-memlab run -o profile.html -m package.train
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.usage = "%(prog)s [options] (script.py | -m module) [arguments]"
        add = parser.add_argument
        add(
            "-f",
            dest="functions",
            action="append",
            metavar="NAME",
            help="profile this function, method or class: of the script (Net.forward), or of"
            " another module (package.module:Net.forward, imported before the script runs);"
            " repeatable",
        )
        add(
            "-c",
            dest="columns",
            action="extend",
            type=lambda names: names.split(","),
            metavar="NAME,...",
            help="show these columns: peak (of active bytes), reserved (its peak), current (active"
            " bytes), delta (bytes that a line kept), hits, time, and any field of"
            " torch.cuda.memory_stats() such as allocated_bytes.all.peak or num_ooms;"
            f" repeatable; without it: {', '.join(DEFAULT_COLUMNS)}",
        )
        add(
            "-o",
            dest="output",
            metavar="FILE",
            help="write the tables to a file instead: text, a page, or data, as its ending says"
            " (.txt, .html, .json). {rank} and {pid} in it are filled in; of several processes"
            " that torchrun starts, each writes its own file, such as out.rank0.html",
        )
        add(
            "--gpu",
            metavar="NAME|SIZE|FILE",
            help="simulate this GPU: a name such as t4, rtx4090, a100, h100; its memory, such as"
            " 24GiB; or a TOML file with its name, memory, compute_capability and multiprocessors"
            f" (default: the machine's own GPU, or {DEFAULT_GPU} if it has none)",
        )
        add("--count", type=int, metavar="N", help="simulate so many GPUs; without it: 1")
        add(
            "--context",
            metavar="SIZE",
            help="let CUDA's context take so much of each simulated GPU, such as 450MiB; without"
            " it: an estimate of ours for a GPU that is named, nothing of one that is but a size",
        )
        add(
            "--others",
            metavar="SIZE",
            help="let other processes hold so much of each simulated GPU; without it: nothing",
        )
        add(
            "--dry-run",
            action="store_true",
            help="simulate shapes only: nothing is computed and no tensor takes memory here, so"
            " that a model of any size runs in seconds; lines that read values are marked. Files"
            " of tensors (torch.save, safetensors, numpy, pickle) stay as they are: what would be"
            " in them can be read until the run ends. All else that the script does, it does: it"
            " makes folders, writes logs and other files, uses the network",
        )
        add(
            "--allow-writes",
            action="store_true",
            help="let a dry run write files of tensors, with zeros or whatever is in memory for"
            " the values that it does not have",
        )
        add(
            "--strict",
            action="store_true",
            help="simulate, and let the script fail at the first line that would be marked ?",
        )
        # A value of its own would be taken for the script.
        add(
            "--strict=estimates",
            dest="strict",
            action="store_const",
            const="estimates",
            help="simulate, and let the script fail at the first line that would be marked ? or ~",
        )
        add("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
        add("script", metavar="script.py", help="what to run")
        add("arguments", nargs=argparse.REMAINDER, help="the script's own")

    def prepare(self, options: argparse.Namespace, process: ExitStack) -> Callable[[], object]:
        """Find the script and its functions, and simulate a GPU where one is asked for or needed.

        Args:
            options: what was given.
            process: keeps what the script finds in force until the process ends.

        Returns:
            What runs the script and shows the tables.

        Raises:
            UsageError: an option cannot be carried out; the script did not begin to run.
        """
        from pytorch_memlab.cli.profiling import Profile

        columns = options.columns and checked_columns(options.columns)
        write = writer_to(options.output)
        _simulate(options, process)
        with without_own_frames(process):
            found = _find(options, process)
            main = process.enter_context(found.as_main())
            profile = Profile(found, options.functions or (), columns)
        tables = ExitStack()
        tables.callback(profile.finish, write, is_asked_for=bool(columns or options.output))
        tell = partial(notices.tell_simulated_gpu, options)
        return partial(_run, found.code, vars(main), profile, tables, process, tell)


def _run(
    code: CodeType,
    namespace: dict[str, Any],
    profile: Profile,
    tables: ExitStack,
    process: ExitStack,
    tell: Callable[[], None],
) -> None:
    """Run the program; its tables follow its exception, or else its threads and exit handlers."""
    tell()
    profile.start(process)
    process.push(tables)
    with without_own_frames(process):
        try:
            exec(code, namespace)  # noqa: S102 - what was asked for
        except BaseException:
            tables.close()
            raise
        finally:
            profile.take_over()


def _simulate(options: argparse.Namespace, process: ExitStack) -> None:
    """Simulate GPUs where an option asks for that, and where there is none."""
    import torch

    from pytorch_memlab.simulation import simulate

    if options.allow_writes and not options.dry_run:
        raise UsageError("--allow-writes is for --dry-run: any other run writes its files")
    is_asked_for = options.gpu is not None or options.dry_run or options.strict
    if not is_asked_for and torch.cuda.is_available():
        for name in ("count", "context", "others"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"--{name} is of simulated GPUs, and needs --gpu on a machine with one"
                )
        return
    process.enter_context(
        simulate(
            options.gpu or DEFAULT_GPU,
            1 if options.count is None else options.count,
            compute=not options.dry_run,
            strict=options.strict,
            allow_writes=options.allow_writes,
            context=options.context,
            others=options.others or 0,
        )
    )


def _find(options: argparse.Namespace, process: ExitStack) -> Program:
    if options.is_module:
        process.enter_context(program.first_on_path(os.getcwd()))
        return program.module(options.script, options.arguments)
    folder = os.path.dirname(os.path.realpath(options.script))
    process.enter_context(program.first_on_path(folder))
    return program.script(options.script, options.arguments)
