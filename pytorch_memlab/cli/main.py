"""``pytorch-memlab``: reads the command line and hands it to a command."""

from __future__ import annotations

import argparse
import atexit
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NoReturn, Protocol

from pytorch_memlab.cli.peak import PeakCommand
from pytorch_memlab.cli.run import RunCommand
from pytorch_memlab.errors import MemlabError

USAGE_ERROR = 2
"""Exit code of a command line that cannot be carried out."""

_UNEXPECTED_VALUE = re.compile("argument (\\S+): ignored explicit argument (.*)")
"""What ``argparse`` says of ``--strict=maybe``."""


class Command(Protocol):
    """One command; its docstring is its help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def prepare(self, options: argparse.Namespace, process: ExitStack) -> Callable[[], object]:
        """Check everything that can be checked beforehand.

        Args:
            options: what was given.
            process: holds what must stay in force until the process ends.

        Returns:
            What does the work.

        Raises:
            MemlabError: the command cannot be carried out, and nothing of it was.
        """


COMMANDS: Mapping[str, Command] = {"run": RunCommand(), "peak": PeakCommand()}


def entry() -> NoReturn:
    """What the console script calls: carries out ``sys.argv``, then ends the process.

    What a command put in force stays so until the threads and exit handlers of the program that
    it ran are done.
    """
    process = ExitStack()
    # Registered after a simulation has registered its own end, and so done before that.
    sys.exit(_carry_out(sys.argv[1:], process, lambda: atexit.register(process.close)))


def main(arguments: Sequence[str]) -> int:
    """Carry out a command line within this process, and give everything back.

    Args:
        arguments: without the name of the program.

    Returns:
        The exit code: 0, or 2 for a command that cannot be carried out.

    Raises:
        BaseException: whatever the program that was run raises.
    """
    with ExitStack() as process:
        return _carry_out(arguments, process)


def _carry_out(
    arguments: Sequence[str],
    process: ExitStack,
    when_prepared: Callable[[], object] = lambda: None,
) -> int:
    options = _parser().parse_args(arguments)
    try:
        work = COMMANDS[options.command].prepare(options, process)
    except MemlabError as error:
        print(f"pytorch-memlab {options.command}: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    finally:
        when_prepared()
    work()
    return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        message = _UNEXPECTED_VALUE.sub(
            r"\1 takes no value \2: --help shows what it takes", message
        )
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pytorch-memlab",
        description="Which line of your program holds the GPU memory, and why.",
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, command in COMMANDS.items():
        text = inspect.cleandoc(command.__doc__ or "")
        subparser = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
    return parser
