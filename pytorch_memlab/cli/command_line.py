"""The whole command line: all commands in one help, and the parser of each."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import textwrap
from collections.abc import Sequence

from pytorch_memlab._common.quoted import shortened
from pytorch_memlab._common.version import __version__
from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, USAGE_ERROR
from pytorch_memlab.cli.parser import CommandParser, did_you_mean
from pytorch_memlab.cli.registry import COMMAND_GROUPS, COMMANDS, help_text

_EXIT_CODES = f"""exit codes:
  0  done; run ends with the code of the program, 1 after an error
  1  a comparison found more growth than its --fail-over allows
  {USAGE_ERROR}  the command line cannot be carried out
  {DOES_NOT_FIT}  a program needs more memory than it may have"""


def command_parser(name: str) -> CommandParser:
    """The parser of one command."""
    command = COMMANDS[name]
    parser = CommandParser(f"pytorch-memlab {name}", help_text(command))
    command.add_arguments(parser)
    if parser.usage is None:
        operands = " ".join(str(action.metavar or action.dest) for action in parser.operands())
        parser.usage = f"%(prog)s [options] {operands}".rstrip()
    _add_help(parser.add_argument_group("help"))
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
    group = parser.add_argument_group("help")
    _add_help(group)
    group.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"pytorch-memlab {__version__}",
        help="show the version",
    )
    parser.epilog = (
        "pytorch-memlab COMMAND --help shows the options of a command.\n\n" + _EXIT_CODES
    )
    return parser


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
    known = [*COMMANDS, "--help", "--version"] if first.startswith("-") else [*COMMANDS]
    return problem + (did_you_mean(first, known) or f": the commands are {', '.join(COMMANDS)}")


def _summary(name: str, text: str) -> str:
    """A command and the first line of its help."""
    column = max(map(len, COMMANDS)) + 4
    return textwrap.fill(
        f"  {name}".ljust(column) + text.partition("\n")[0],
        max(shutil.get_terminal_size().columns - 2, 2 * column),
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )


def _add_help(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-h", "--help", action="help", help="show this help")
