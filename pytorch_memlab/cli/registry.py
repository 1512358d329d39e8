"""The commands of ``pytorch-memlab``, in the groups that its help shows."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

from pytorch_memlab.cli.commands.completion import CompletionCommand
from pytorch_memlab.cli.commands.diff import DiffCommand
from pytorch_memlab.cli.commands.fit import FitCommand
from pytorch_memlab.cli.commands.merge import MergeCommand
from pytorch_memlab.cli.commands.peak import PeakCommand
from pytorch_memlab.cli.commands.replay import ReplayCommand
from pytorch_memlab.cli.commands.run import RunCommand
from pytorch_memlab.cli.commands.show import ShowCommand
from pytorch_memlab.cli.commands.timeline import TimelineCommand
from pytorch_memlab.cli.commands.top import TopCommand
from pytorch_memlab.cli.parser import CommandParser


class Command(Protocol):
    """One command; its docstring is its help.

    A module of a command imports neither torch nor pandas at its top: help and usage errors are
    shown at once.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    def prepare(
        self, options: argparse.Namespace, process: ExitStack, /
    ) -> Callable[[], int | None]:
        """Check everything that can be checked beforehand.

        Args:
            options: what was given.
            process: holds what must stay in force until the process ends.

        Returns:
            a function that does the work, and returns the exit code or None for 0.

        Raises:
            MemlabError: the command cannot be carried out, and nothing of it was.
        """


COMMAND_GROUPS: Mapping[str, Mapping[str, Command]] = {
    "profile a program": {"run": RunCommand(), "fit": FitCommand()},
    "look at what was recorded": {
        "show": ShowCommand(),
        "top": TopCommand(),
        "peak": PeakCommand(),
        "timeline": TimelineCommand(),
        "diff": DiffCommand(),
        "merge": MergeCommand(),
        "replay": ReplayCommand(),
    },
    "set up": {"completion": CompletionCommand()},
}
"""Commands by name, under the headings of the help."""

COMMANDS: Mapping[str, Command] = {
    name: command for group in COMMAND_GROUPS.values() for name, command in group.items()
}


def help_text(command: Command) -> str:
    """The docstring of a command."""
    return inspect.cleandoc(command.__doc__ or "")
