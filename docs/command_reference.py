"""The reference of the command line, from the parsers: tables, with an anchor for each option."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from pytorch_memlab.cli.command_line import COMMANDS, command_parser

_OPTION: Final = re.compile(r"(?<![\w/`-])(--?[a-zA-Z][\w-]*)")
_SIGN: Final = re.compile(r"([\\`*_<>|\[\]$])")
_CODE: Final = re.compile(r"^  (\d+)  (.*)")


def command_sections() -> Iterator[str]:
    """The section of each command: what it does, examples, exit codes, options."""
    for name in COMMANDS:
        yield "\n".join([*_section(name), ""])


def anchor(command: str, action: argparse.Action) -> str:
    """The name of an option's row, such as ``run--dry-run``."""
    return command + max(action.option_strings, key=len).replace("=", "-")


def _section(name: str) -> Iterator[str]:
    parser = command_parser(name)
    usage = parser.format_usage().removeprefix("usage: ")
    yield from (f"## {name}", "", *_description(parser.description or ""))
    yield from ("```text", " ".join(usage.split()), "```", "")
    for group in parser._action_groups:
        shown = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if shown and group.title not in (None, "help"):
            yield from (f"| {prose(group.title)} | |", "|---|---|")
            yield from (_row(name, one) for one in shown)
            yield ""


def _row(command: str, action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {_value(action)}"
    names = ", ".join(f"`{one}{value}`" for one in action.option_strings) or f"`{_value(action)}`"
    named = f'<a id="{anchor(command, action)}"></a>' if action.option_strings else ""
    text = (action.help or "") % {"prog": "pytorch-memlab"}
    return f"| {named}{names.replace('|', chr(92) + '|')} | {prose(text)} |"


def _value(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _description(text: str) -> Iterator[str]:
    """Paragraphs of a help text; its examples as commands, its exit codes as a table."""
    for paragraph in text.split("\n\n"):
        head, _, rest = paragraph.partition("\n")
        if head == "for example:":
            yield from ("```console", *(f"$ {line.strip()}" for line in rest.splitlines()), "```")
        elif head == "exit codes:":
            yield from _exit_codes(rest.splitlines())
        else:
            yield prose(" ".join(paragraph.split()))
        yield ""


def _exit_codes(lines: list[str]) -> Iterator[str]:
    """Codes in a table, and what stands around them as prose."""
    joined: list[str] = []
    for line in lines:
        is_continued = joined and _CODE.match(joined[-1]) and line.startswith("     ")
        if is_continued:
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    for is_code, group in groupby(joined, lambda line: bool(_CODE.match(line))):
        found = list(group)
        if not is_code:
            yield prose("Exit code: " * (found[0] is joined[0]) + " ".join(map(str.strip, found)))
        else:
            yield from ("", "| exit code | |", "|---|---|")
            for line in found:
                code = _CODE.match(line)
                assert code is not None
                yield f"| {code[1]} | {prose(code[2])} |"
            yield ""


def prose(text: str) -> str:
    r"""A text of a help in Markdown: its options as code, all other signs as they are.

    >>> print(prose("as --dry-run does, 'Block.*'"))
    as `--dry-run` does, 'Block.\*'
    """
    parts = _OPTION.split(text)
    return "".join(
        f"`{part}`" if place % 2 else _SIGN.sub(r"\\\1", part) for place, part in enumerate(parts)
    )
