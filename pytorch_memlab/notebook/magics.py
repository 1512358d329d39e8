"""The magics of ``%load_ext pytorch_memlab``: %mlrun, %simulate, and those of ``ImuMagics``."""

from __future__ import annotations

import inspect
import sys
import traceback
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display as show
from IPython.utils.text import DollarFormatter

from .._common.frames.call_results import is_result_dropped
from .._common.process.switch import SWITCHED_OFF, is_switched_off
from .._common.process.uncaught_errors import message_of
from ..devices.allocations import count_gpus
from ..errors import MemlabError, UnknownGPUError, UsageError
from ..line_profiler.line_records import RecordsDisplay
from ..out_of_memory import leave_untried
from ..simulation.inspect import GPU, active
from .memory_usage import stop_watching_memory
from .mlrun import CellRun, CellSyntaxError, MlrunFile
from .mlrun_options import OPTIONS, chosen_columns, split_statement
from .option_words import words_before_comment, words_of

if TYPE_CHECKING:
    from ..simulation import simulate
    from ..simulation.inspect import Machine


@dataclass(frozen=True)
class _Running:
    """The simulation that is on. Equal settings give equal machines."""

    simulation: simulate
    machine: Machine
    settings: tuple[GPU, int, str]
    text: str


_running: list[_Running] = []
"""The simulation that %simulate has turned on, if any."""


def _with_mlrun_options(magic: Any) -> Any:
    """Give a magic the parser and the help of ``%mlrun``."""
    for names, settings in reversed(OPTIONS.items()):
        magic = argument(*names.split(), **settings)(magic)
    return magic_arguments()(magic)


@magics_class
class MemlabMagics(Magics):
    """Line and cell magics."""

    @_with_mlrun_options
    @no_var_expand  # braces and dollars in a statement are the statement's
    @needs_local_scope
    @line_cell_magic
    def mlrun(self, line: str = "", cell: str | None = None, local_ns: Any = None) -> Any:
        """Run a statement or a cell, and show the GPU memory of its functions' lines.

        %mlrun [options] statement

        %%mlrun [options]
        """
        __tracebackhide__ = True
        options, statement = split_statement(line)
        words = words_of(options, lambda word: self._expanded(word, local_ns))
        args = self.mlrun.parser.parse_args(words)
        if args.help:
            # IPython has made it of the options; without the mark of a literal block.
            text = inspect.cleandoc(MemlabMagics.mlrun.__doc__ or "")
            print(text.removeprefix("::").lstrip("\n"))
            return None
        try:
            display = self._mlrun(args, statement if cell is None else cell, cell is None, local_ns)
        except CellSyntaxError:
            raise
        except MemlabError as error:
            raise MagicUsageError(str(error)) from None
        if isinstance(display, RecordsDisplay) and is_result_dropped(_calling_frame()):
            show(display)
            return None
        return display

    @line_magic
    def simulate(self, line: str) -> None:
        """Simulate GPUs from the next cell on: %simulate h100, %simulate 24GiB 2, %simulate off."""
        try:
            if is_switched_off():
                print(f"{SWITCHED_OFF}: nothing is simulated")
                return
            print(_simulate_by_words(words_before_comment(line)))
        except MemlabError as error:
            raise MagicUsageError(str(error)) from None

    def _expanded(self, word: str, local_ns: dict[str, Any] | None) -> str:
        """A word with ``$name`` and ``{expression}`` replaced by values, as magics have them."""
        assert self.shell is not None
        try:
            names = {**self.shell.user_ns, **(local_ns or {})}
            return str(DollarFormatter().vformat(word, [], names))
        except Exception:  # whatever an expression raises, IPython takes it for plain text
            return word

    def _mlrun(self, args: Namespace, source: str, is_line: bool, local_ns: Any) -> Any:
        __tracebackhide__ = True
        columns = chosen_columns(args)
        if is_switched_off():
            args.quiet, args.output, args.simulate = True, None, None
        file = _file_of(args)
        if is_line and not source:
            raise UsageError("%mlrun needs a statement: %mlrun -f func func(10); see %mlrun?")
        assert self.shell is not None
        with ExitStack() as simulation:
            if args.simulate is not None:
                from ..simulation import simulate

                simulation.enter_context(simulate(args.simulate, args.num_gpus))
            draws = file is not None and file.is_page and active.machine is not None
            device = _checked_device(args.gpu)
            run = CellRun(
                self.shell,
                args.function,
                device,
                keeps_history=draws,
                empties_cache=args.empty_cache,
            )
            try:
                run.run(source, local_ns)
            except BaseException as error:
                if args.no_try:
                    leave_untried(error)
                measured = run.display(columns)
                if measured.report.tables and file is not None:
                    file.write(run, columns)
                if measured.report.tables and not args.quiet:
                    show(measured)
                _tell_missing_gpu(error)
                raise
            display = run.display(columns)
            if file is not None:
                file.write(run, columns)
        if args.return_profiler:
            return run.profiler
        return None if args.quiet else display


def _file_of(args: Namespace) -> MlrunFile | None:
    if args.output is not None:
        return MlrunFile(args.output, is_quiet=args.quiet, is_private=args.private)
    if args.private:
        raise UsageError("--private is for the file of --output: give that too")
    return None


def _tell_missing_gpu(error: BaseException) -> None:
    """Say how a GPU is simulated after an error of CUDA on a machine without one."""
    says = message_of(error).lower()
    is_of_gpu = "cuda" in says or "nvidia driver" in says
    if is_of_gpu and not isinstance(error, MemlabError) and not count_gpus():
        advice = "no GPU here: %simulate h100 simulates one, as does --simulate h100"
        print(advice, file=sys.stderr)


def end_everything() -> None:
    """End the simulation and the lines after commands that magics have begun."""
    stop_watching_memory()
    if _running:
        print(_simulate_by_words(["off"]))


def _calling_frame() -> FrameType | None:
    """The frame of the user's code that called a magic."""
    machinery = ("IPython", __name__.partition(".")[0])
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in machinery:
            return frame
    return None


def _checked_device(device: str | None) -> str | None:
    """A device as the user named it, unless it is a GPU to be simulated."""
    from ..simulation.inspect import find_gpu

    if device is None or device.isdecimal():
        return device
    try:
        find_gpu(device)
    except UnknownGPUError:
        return device
    raise UsageError(f"-g takes a device such as 1 or cuda:1; --simulate {device} simulates one")


# %simulate


def _simulate_by_words(words: list[str]) -> str:
    """Carry out the words after ``%simulate``: a GPU and its number, ``off``, or none to ask."""
    match words:
        case []:
            return _running[-1].text if _running else "no simulation is on: %simulate h100"
        case [word] if word.lower() == "off":
            was_on = bool(_running)
            _end()
            return "simulation off" if was_on else "no simulation was on"
        case [gpu] | [gpu, _]:
            count = words[1] if len(words) > 1 else "1"
            if not count.isdecimal():
                raise UsageError(f"%simulate takes a GPU and how many of it, not {count!r}")
            return _simulate(gpu, int(count))
    raise UsageError("%simulate takes a GPU and how many of it: %simulate h100 2; or off")


def _simulate(gpu: str, count: int) -> str:
    from ..simulation import simulate
    from ..simulation.inspect import find_gpu, settings_string

    settings = (find_gpu(gpu), count, settings_string())
    same = [simulation for simulation in _running if simulation.settings == settings]
    if same and id(same[0].simulation) in active.simulations:  # other code may have ended it
        return f"{same[0].text}. It was on already: its tensors stay"
    simulation = simulate(gpu, count)  # a mistake ends no other simulation
    loses_tensors = any(True for running in _running for _ in running.machine.living())
    _end()
    machine = simulation.__enter__()
    text = f"simulating {count} x {settings[0].name}; %simulate off ends it"
    _running.append(_Running(simulation, machine, settings, text))
    return text + ". Tensors of the former GPU are CPU tensors now" * loses_tensors


def _end() -> None:
    while _running:
        _running.pop().simulation.__exit__()
