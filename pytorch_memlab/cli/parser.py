"""The parser of a command: its help, and its one-line errors."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NoReturn

from .._common.process.standard_output import print_to_stdout
from .._common.text.quoted import shortened
from .exit_codes import USAGE_ERROR

_REWORDED = (
    # What ``argparse`` says of ``--strict=maybe``.
    (
        re.compile("argument (\\S+): ignored explicit argument (.*)"),
        r"\1 takes no value \2: --help shows what it takes",
    ),
    # What a type says of a value: the option is the subject of the sentence.
    (re.compile("argument (?:-\\w/)?(--[\\w-]+): is "), r"\1 is "),
    (re.compile("the following arguments are required: ([^,]*)$"), r"\1 is missing"),
    (re.compile("the following arguments are required: (.*), (.*)"), r"\1 and \2 are missing"),
)
_EXAMPLE: Final = re.compile(r"^for example:\n +(.*)", re.MULTILINE)

Add = Callable[..., argparse.Action]
"""Declares an option or operand: ``add("-n --rows N", help)``, and what ``add_argument`` takes."""


class CommandParser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage before it."""

    # The description is the help: prose is filled to the width, indented lines stay.

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        # Since 3.14; a text that differs between a terminal and a file cannot be tested.
        self.color = False
        self._positionals.title = "arguments"
        self.hint_on_unknown = ""
        """The end of the error of an unknown option."""
        self.origin = ""
        """The beginning of an error where the options are not of the command line."""
        self.optional_values: dict[str, Callable[[str], bool]] = {}
        """Options that may stand without a value, and whether the next word is one."""

        self._given: Sequence[str] = ()
        self.add: Add = partial(_add, self)

    def group(self, title: str) -> Add:
        """Begin a heading of the help: the function that declares its options."""
        return partial(_add, self.add_argument_group(title))

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        self._given = arguments
        options, unknown = self.parse_known_args(self._with_values(arguments))
        if unknown:
            self.error(self._unknown(unknown[0]))
        options.has_double_dash = "--" in arguments  # argparse drops it
        return options

    def _with_values(self, arguments: Sequence[str]) -> list[str]:
        """The words with an empty value for options of ``optional_values`` that have none."""
        # Words from the first operand on are those of a program, perhaps, and stay as they are.
        words, position = list(arguments), 0
        while position < len(words) and words[position].startswith("-"):
            word = words[position]
            following = words[position + 1 : position + 2]
            action = self._option_string_actions.get(word)
            is_value = self.optional_values.get(word)
            if is_value is None:
                position += 1 if action is None or action.nargs == 0 else 2
                continue
            has_value = bool(following) and is_value(following[0])
            words[position : position + 1 + has_value] = [
                f"{word}={following[0] if has_value else ''}"
            ]
            position += 1
        return words

    def shown_actions(self) -> list[argparse.Action]:
        """Everything that the help shows, options and operands."""
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            print_to_stdout(message)
        else:
            super()._print_message(message, file)

    def shown_options(self) -> list[str]:
        """All options that the help shows."""
        return [name for action in self.shown_actions() for name in action.option_strings]

    def operands(self) -> list[argparse.Action]:
        """The arguments after the options."""
        return [action for action in self.shown_actions() if not action.option_strings]

    def error(self, message: str) -> NoReturn:
        for pattern, better in _REWORDED:
            message = pattern.sub(better, message)
        if message.endswith((" is missing", " are missing")):
            example = _EXAMPLE.search(self.description or "")
            message += f": for example, {self._with_own(example[1])}" if example else ": see --help"
        self.exit(USAGE_ERROR, f"{self.prog}: error: {self.origin}{message}\n")

    def _with_own(self, example: str) -> str:
        """An example of an option that is missing, with the files that were given."""
        files = [word for word in self._given if os.path.exists(word)]
        words = example.split()
        if not files or "-o" not in words:
            return example
        return shlex.join([*words[: words.index("-o") + 2], *files])

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {shortened(argument)}"
        name = argument.partition("=")[0]
        near = did_you_mean(name, self.shown_options())
        return f"unknown option {shortened(name)}{near or self.hint_on_unknown}"


def _add(
    container: argparse._ActionsContainer, names: str, text: str, **settings: Any
) -> argparse.Action:
    """Declare an option by its names, or an operand by its place in the help."""
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    if len(flags) < len(words):
        settings["metavar"] = words[-1]
    return container.add_argument(
        *flags or [settings.pop("dest", words[-1].lower())], help=text, **settings
    )


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The end of an error: the nearest of the known words; empty where none is near."""
    words = {choice.lstrip("-"): choice for choice in choices}  # dashes make no two options alike
    near = difflib.get_close_matches(word.lstrip("-"), words, n=1, cutoff=0.66)
    return f": did you mean {words[near[0]]}?" if near else ""


class _HelpFormatter(argparse.HelpFormatter):
    """Fills prose and keeps indented lines; shows options alike on all versions of Python."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = []
        lines = text.splitlines()
        for is_prose, group in groupby(lines, lambda line: line[:1] not in ("", " ")):
            block = list(group)
            if is_prose:
                block = self._split_lines(" ".join(block), width)
                block = [f"{indent}{line}" for line in block]
            blocks += block
        return "\n".join(blocks)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # A command is not torn apart at its hyphen.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # Before 3.13 the value stood behind each of the names.
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return f"{names} {self._format_args(action, action.dest.upper())}"
