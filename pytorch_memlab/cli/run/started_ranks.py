"""The ranks that a program itself starts, each recorded as ``run`` records a program.

Note [How a program starts its own ranks]
``torch.multiprocessing.spawn`` and Ray Train call a function in other processes: what they get is a
``RankCall``, which records that function. Lightning's launcher starts the same command again for
every rank but the first: that process becomes one of ``run``, as those that ``torchrun`` starts.
Other processes, such as the workers of a ``DataLoader``, go on as they are.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..._common.frames.user_code import OWN_FOLDER
from ..._common.patching.after_import import AfterImport
from ..._common.patching.patches import Patches
from ..._common.process.ranks import (
    ATTEMPT,
    LIGHTNING,
    SPAWNED_RANK,
    SPAWNED_RANKS,
    rank_in,
    this_rank,
)
from ..._common.process.uncaught_errors import uncaught
from ...errors import ProfileError, UsageError
from ...jobs.black_box import BlackBox
from ...jobs.folder import JOB_VARIABLE, JobFolder
from ...jobs.launch import for_ranks
from ...simulation.inspect import more_gpus_for_processes, not_simulated
from ..common_options import MOST_GPUS
from ..jobs import print_job
from ..notices import tell
from .words import words_of

if TYPE_CHECKING:
    from ...render.output_format import RunResults
    from ..parser import CommandParser
    from .files import RunFiles

_RAY_TRAINERS: Final = ("ray.train.v2.api.data_parallel_trainer", "ray.train.data_parallel_trainer")
_PATIENCE: Final = 30.0
"""Seconds that a program which has failed waits for ranks that Lightning does not wait for."""


Record: TypeAlias = Callable[[argparse.Namespace, Callable[[], object]], object]
"""Calls a function as ``run`` runs a program; another process finds it by its name."""


class StartedRanks:
    """The ranks that the program of this process starts."""

    def __init__(
        self,
        options: argparse.Namespace,
        parser: CommandParser,
        files: RunFiles,
        record: Record,
    ) -> None:
        self._parser = parser
        self._record = record
        self._options = options
        self._box = files.black_box
        self._write = files.write
        self._job = os.environ.get(JOB_VARIABLE) or secrets.token_hex(8)
        self._folder: str | None = None
        if self._box is not None:
            self._job, self._folder = self._box.folder.job, self._box.folder.name
        self._temporary: TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[Any]] = []  # that nothing else waits for
        self._calls = 0
        self._rank = this_rank()  # of this process, in the job that it starts
        self.have_started = False
        """True once the program has started ranks."""

    def start(self, process: ExitStack) -> None:
        """Record ranks that the program starts from now on, until a stack closes."""
        if this_rank().is_one_of_several or self._options.script == "-":
            return  # what a rank starts is no rank
        original: Any = importlib.import_module("torch.multiprocessing.spawn").start_processes

        def start_processes(
            fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *rest: Any, **options: Any
        ) -> Any:
            with more_gpus_for_processes(0 if self._options.num_gpus else min(nprocs, MOST_GPUS)):
                return original(self._call(fn, nprocs), args, nprocs, *rest, **options)

        patches = process.enter_context(Patches())
        patches.set_by_name((original, start_processes))
        patches.around(subprocess.Popen, "__init__")(self._popen)
        imports = AfterImport()
        for name in _RAY_TRAINERS:
            imports.call(name, functools.partial(self._patch_trainer, patches))
        imports.start()
        process.callback(imports.stop)

    def write(self, results: RunResults) -> None:
        """Write the results of this process, which may be one of the ranks that it started."""
        if self._temporary is None:
            self._write(results)
        else:
            folder = JobFolder(str(self._folder), replaces_older=True, job=self._job)
            box = BlackBox(folder, None, is_private=self._options.private)
            box.rank = self._rank
            with suppress(UsageError):  # there is no room for it
                box.finish(results.recorded, sys.exc_info()[1])

    def finish(self) -> None:
        """Print the answer for the job, once its ranks have ended."""
        error = sys.exc_info()[1]
        has_failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(_PATIENCE if has_failed else None)
        try:
            if self.have_started and self._folder is not None:
                print_job(self._folder)
        except ProfileError as error:
            tell(f"no rank has left its profile: {error}")
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def _call(self, function: Callable[..., Any], ranks: int | None) -> RankCall:
        """A call that records a function in processes that are started together."""
        call = RankCall(
            self._record, self._of_ranks(), function, ranks, self._calls, self._job, os.getpid()
        )
        self._calls += 1
        # Not the annotations, which cannot be pickled if they name what is not there yet.
        functools.update_wrapper(call, function, ("__module__", "__name__", "__qualname__"))
        return call

    def _patch_trainer(self, patches: Patches, module: Any) -> None:
        def make(
            original: Callable[..., None],
            trainer: Any,
            train_loop_per_worker: Callable[..., Any],
            *args: Any,
            **options: Any,
        ) -> None:
            original(trainer, self._call(train_loop_per_worker, None), *args, **options)

        patches.around(module.DataParallelTrainer, "__init__")(make)

    def _popen(
        self, original: Callable[..., None], popen: Any, *args: Any, **keywords: Any
    ) -> None:
        """Let a process that starts this program once more, as another rank, be one of ``run``."""
        command, environment = args[0] if args else keywords.get("args"), keywords.get("env")
        if environment is None or not _is_own_rank(command, environment):
            original(popen, *args, **keywords)
            return
        words = [*words_of(self._of_ranks(), self._parser)]
        self._rank = replace(rank_in(environment), rank=0, local_rank=0)
        if self._box is not None:
            self._box.rank = self._rank
        keywords["env"] = for_ranks(words, {**not_simulated(environment), JOB_VARIABLE: self._job})
        original(popen, *args, **keywords)
        self._processes.append(popen)

    def _of_ranks(self) -> argparse.Namespace:
        """The options of ranks, whose files are in a folder where the user named none."""
        self.have_started = True
        if not self._options.outputs and self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="pytorch-memlab.")
            self._folder = os.path.join(self._temporary.name, "job.memlab")
            JobFolder(self._folder, replaces_older=True, job=self._job)
        options = copy.copy(self._options)
        options.job_is_temporary = self._temporary is not None
        options.outputs = [
            os.path.abspath(name) for name in self._options.outputs or [str(self._folder)]
        ]
        if not options.is_module:
            options.script = os.path.abspath(options.script)
        return options


def _is_own_rank(command: Any, environment: Mapping[str, str]) -> bool:
    """True for the command of this program, as Lightning starts it for all ranks but the first."""
    rank = rank_in(environment)
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence):
        return False
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = [os.path.abspath(sys.argv[0])] if spec is None else ["-m", spec.name]
    is_same = list(command[: 1 + len(program)]) == [sys.executable, *program]
    return is_same and rank.launcher == LIGHTNING and rank.local_rank > 0


@dataclass
class RankCall:
    """The function of a rank in another process, recorded as ``run`` records a program."""

    # The number of ranks is None where the environment of that process has it.

    record: Record
    options: argparse.Namespace
    function: Callable[..., Any]
    ranks: int | None
    attempt: int
    job: str
    parent: int

    def __call__(self, *args: Any) -> Any:
        """Call the function, in the process of its rank."""
        if os.getpid() == self.parent:
            return self.function(*args)
        os.environ[JOB_VARIABLE] = self.job
        os.environ[ATTEMPT] = str(self.attempt)
        if self.ranks is not None:
            os.environ[SPAWNED_RANK], os.environ[SPAWNED_RANKS] = str(args[0]), str(self.ranks)
        try:
            return self.record(self.options, functools.partial(self.function, *args))
        except BaseException as error:
            uncaught.shown(error)  # the process that started this one shows the traceback
            error.__traceback__ = _of_program(error.__traceback__)
            raise


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is not of this package."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        trace = trace.tb_next
    return trace
