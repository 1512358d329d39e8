"""The whole command line: all commands in the groups of the help, and the parser of each."""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, cast

from .._common.process.version import __version__
from .._common.text.quoted import shortened
from . import commands
from .commands.completion import CompletionCommand
from .exit_codes import DOES_NOT_FIT, USAGE_ERROR
from .parser import CommandParser, did_you_mean
from .process import CommandProcess

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

_EXIT_CODES = f"""exit codes:
  0  done; run ends with the code of the program, 1 after an error, and 1 in place of 0 if a
     file could not be written
  1  a comparison found more growth than its --fail-over allows
  {USAGE_ERROR}  the command line cannot be carried out
  {DOES_NOT_FIT}  a program needs more memory than it may have"""
_HELP = ("-h --help", "show this help")


class Command(Protocol):
    """One command; its docstring is its help.

    It imports neither torch nor pandas at its top: help and usage errors are shown at once.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    def prepare(
        self, options: argparse.Namespace, process: CommandProcess, /
    ) -> Callable[[], int | None]:
        """Check everything that can be checked beforehand, and raise a ``MemlabError`` if needed.

        The function that is returned does the work, and returns the exit code or None for 0.
        ``process`` holds what must stay in force until the process ends.
        """


class CommandModule(Command):
    """A command that is a module, imported when it is given: help on all reads docstrings only."""

    def __init__(self, name: str) -> None:
        self._name = f"{commands.__name__}.{name}"

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        # The first constant of a module's code, which Python keeps beside its file.
        spec = find_spec(self._name)
        loader = cast("InspectLoader", spec.loader if spec else None)
        code = loader.get_code(self._name)
        return code.co_consts[0] if code else None

    @property
    def _command(self) -> Command:
        return cast("Command", import_module(self._name))

    def add_arguments(self, parser: CommandParser) -> None:
        self._command.add_arguments(parser)

    def prepare(
        self, options: argparse.Namespace, process: CommandProcess, /
    ) -> Callable[[], int | None]:
        return self._command.prepare(options, process)


def _modules(*names: str) -> dict[str, Command]:
    return {name: CommandModule(name) for name in names}


COMMAND_GROUPS: Mapping[str, Mapping[str, Command]] = {
    "profile a program": _modules("run", "fit", "verify"),
    "look into a program that runs": _modules("watch", "attach"),
    "look at what was recorded": _modules(
        "show", "top", "peak", "timeline", "diff", "merge", "replay"
    ),
    "set up": {**_modules("debug"), "completion": CompletionCommand(lambda: parsers())},
}
"""Commands by name, under the headings of the help."""

COMMANDS: Mapping[str, Command] = {
    name: command for group in COMMAND_GROUPS.values() for name, command in group.items()
}


def help_text(command: Command) -> str:
    return inspect.cleandoc(command.__doc__ or "")


def command_parser(name: str) -> CommandParser:
    command = COMMANDS[name]
    parser = CommandParser(f"pytorch-memlab {name}", help_text(command))
    command.add_arguments(parser)
    if parser.usage is None:
        operands = " ".join(str(action.metavar or action.dest) for action in parser.operands())
        parser.usage = f"%(prog)s [options] {operands}".rstrip()
    parser.group("help")(*_HELP, action="help")
    return parser


def main_parser() -> CommandParser:
    """The parser of what stands before a command, and the help on all commands."""
    parser = CommandParser(
        "pytorch-memlab",
        "A line-by-line GPU memory profiler for PyTorch, on a GPU or a simulated one.",
    )
    parser.usage = "%(prog)s COMMAND [options]"
    for title, group in COMMAND_GROUPS.items():
        lines = [_summary(name, help_text(command)) for name, command in group.items()]
        parser.add_argument_group(title, "\n".join(lines))
    add = parser.group("help")
    add(*_HELP, action="help")
    version = f"pytorch-memlab {__version__}"
    add("-V --version", "show the version", action="version", version=version)
    parser.epilog = (
        "pytorch-memlab COMMAND --help shows the options of a command.\n\n" + _EXIT_CODES
    )
    return parser


def parsers() -> dict[str, Callable[[], CommandParser]]:
    """A function for the parser of each command; the empty name is that of no command."""
    return {"": main_parser} | {name: partial(command_parser, name) for name in COMMANDS}


def unknown_command(arguments: Sequence[str]) -> str:
    """The error for a first argument that is no command."""
    first = arguments[0]
    if first.startswith("-"):
        is_of_run = first.partition("=")[0] in command_parser("run").shown_options()
        problem = f"unknown option {shortened(first)}"
    else:
        is_of_run = first.endswith(".py") or os.path.isfile(first)
        problem = f"there is no command {shortened(first)}"
    if is_of_run:
        return (
            f"{problem}: did you mean: {shortened('pytorch-memlab run ' + shlex.join(arguments))}"
        )
    choices = [*COMMANDS, "--help", "--version"] if first.startswith("-") else [*COMMANDS]
    return problem + (did_you_mean(first, choices) or f": the commands are {', '.join(COMMANDS)}")


def _summary(name: str, text: str) -> str:
    """A command and the first line of its help."""
    column = max(map(len, COMMANDS)) + 4
    return textwrap.fill(
        f"  {name}".ljust(column) + text.partition("\n")[0],
        max(shutil.get_terminal_size().columns - 2, 2 * column),
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )
