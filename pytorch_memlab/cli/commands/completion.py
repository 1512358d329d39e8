"""``pytorch-memlab completion``: the shell completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from ..._common.process.standard_output import print_to_stdout
from ..parser import CommandParser

_BASH = """\
_pytorch_memlab() {
    local IFS=$'\\n'
    COMPREPLY=($(pytorch-memlab completion candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _pytorch_memlab pytorch-memlab
"""

_ZSH = """\
#compdef pytorch-memlab
_pytorch_memlab() {
    local -a found
    found=(${(f)"$(pytorch-memlab completion candidates "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _pytorch_memlab pytorch-memlab
"""

_FISH = """\
function __pytorch_memlab
    pytorch-memlab completion candidates (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
complete -c pytorch-memlab -a '(__pytorch_memlab)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_CANDIDATES = "candidates"

Parsers = Mapping[str, Callable[[], CommandParser]]
"""Functions for the parsers by the names of the commands; the empty name is that of none."""


class _Shells(tuple[str, ...]):
    """The shells that are listed; scripts give another word in place of one."""

    def __contains__(self, word: object) -> bool:
        return word == _CANDIDATES or super().__contains__(word)


class CompletionCommand:
    """Print what makes a shell complete commands, options and values.

    for example:
      eval "$(pytorch-memlab completion bash)"      # in ~/.bashrc
      eval "$(pytorch-memlab completion zsh)"       # in ~/.zshrc, after compinit
      pytorch-memlab completion fish | source       # in ~/.config/fish/config.fish
    """

    def __init__(self, parsers: Callable[[], Parsers]) -> None:
        self._parsers = parsers

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add("SHELL", ", ".join(_SCRIPTS), choices=_Shells(_SCRIPTS))
        # What the scripts give: all words after the command's name, the last one unfinished.
        words = parser.add("WORDS", argparse.SUPPRESS, nargs=argparse.REMAINDER)
        words.required = False

    def prepare(self, options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], None]:
        if options.shell != _CANDIDATES:
            return partial(print_to_stdout, _SCRIPTS[options.shell])
        words = options.words or [""]
        return lambda: print_to_stdout("\n".join(candidates(words, self._parsers())) + "\n")


def candidates(words: Sequence[str], parsers: Parsers) -> list[str]:
    """The completions of the last word; none where the shell completes names of files."""
    *before, current = [word for word in words if word != "="]  # bash splits --gpu=t4
    if not before:
        return _starting(current, [*filter(None, parsers), *parsers[""]().shown_options()])
    if before[0] not in parsers:
        return []
    parser = parsers[before[0]]()
    with_value = {
        name: action
        for action in parser.shown_actions()
        for name in action.option_strings
        if action.nargs != 0
    }
    operands = 0
    expects_value = False
    for word in before[1:]:
        if not expects_value and not word.startswith("-"):
            operands += 1
        expects_value = not expects_value and word in with_value
    if expects_value:
        return _values(with_value[before[-1]], current)
    if operands and any(action.nargs == argparse.REMAINDER for action in parser.operands()):
        return []  # arguments of the program
    if current.startswith("-"):
        name, equals, value = current.partition("=")
        if equals and name in with_value:
            return [f"{name}={candidate}" for candidate in _values(with_value[name], value)]
        return _starting(current, parser.shown_options())
    operand = parser.operands()[operands : operands + 1]
    choices = operand[0].choices if operand else None
    return _starting(current, choices or ())


def _values(action: argparse.Action, current: str) -> list[str]:
    """Values of an option; of a list, of its last part."""
    if action.choices is not None:
        return _starting(current, map(str, action.choices))
    if action.dest == "gpu":
        from ...simulation.inspect import PRESETS

        return _starting(current, PRESETS)
    if action.dest == "columns":
        from ...columns import COLUMNS
        from ...memory_fields import FIELDS

        start, comma, last = current.rpartition(",")
        names = (*(column.name for column in COLUMNS), *FIELDS)
        return [start + comma + name for name in _starting(last, names)]
    return []


def _starting(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]
