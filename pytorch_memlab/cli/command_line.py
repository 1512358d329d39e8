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
from typing import Protocol

from .._common.process.version import __version__
from .._common.text.quoted import shortened
from .commands import (
    attach,
    debug,
    diff,
    fit,
    merge,
    peak,
    replay,
    run,
    show,
    timeline,
    top,
    verify,
    watch,
)
from .commands.completion import CompletionCommand
from .exit_codes import DOES_NOT_FIT, USAGE_ERROR
from .parser import CommandParser, did_you_mean
from .process import CommandProcess

_EXIT_CODES = f"""exit codes:
  0  done; run ends with the code of the program, 1 after an error, and 1 in place of 0 if a
     file could not be written
  1  a comparison found more growth than its --fail-over allows
  {USAGE_ERROR}  the command line cannot be carried out
  {DOES_NOT_FIT}  a program needs more memory than it may have"""
_HELP = ("-h --help", "show this help")


class Command(Protocol):
    """One command, a module as a rule; its docstring is its help.

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


COMMAND_GROUPS: Mapping[str, Mapping[str, Command]] = {
    "profile a program": {"run": run, "fit": fit, "verify": verify},
    "look into a program that runs": {"watch": watch, "attach": attach},
    "look at what was recorded": {
        "show": show,
        "top": top,
        "peak": peak,
        "timeline": timeline,
        "diff": diff,
        "merge": merge,
        "replay": replay,
    },
    "set up": {"debug": debug, "completion": CompletionCommand(lambda: parsers())},
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
    for title, commands in COMMAND_GROUPS.items():
        lines = [_summary(name, help_text(command)) for name, command in commands.items()]
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
