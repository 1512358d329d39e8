"""Commands that a program starts in a dry run; Note [Commands of a dry run]."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...._common.patching.patches import Patches
from ...._common.process.real_files import on_disk
from ....errors import CommandRefusedError
from . import file_commands
from .commands import CARRIED_OUT, Kind, kind_of, kind_of_all, simple_commands
from .overlay import VARIABLE, Overlay

_PATH: Final = "PATH"
_LONGEST: Final = 200
_PROGRAM: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_command.py")
_SHELLS: Final = ("sh", "bash", "dash", "zsh")
_chmod, _mkdir = os.chmod, os.mkdir
_open = open


class _Started(NamedTuple):
    """A command that is started in place of another."""

    words: Any
    environment: Mapping[str, str] | None


class _Commands:
    """Functions that stand for those that start commands."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def popen(self, init: Callable[..., None], /, *args: Any, **options: Any) -> None:
        """``subprocess.Popen``."""
        if not self._overlay.is_on:
            init(*args, **options)
            return
        bound = inspect.signature(init).bind(*args, **options)
        values = bound.arguments
        command, environment = values["args"], values.get("env")
        if values.get("cwd") is not None:
            values["cwd"] = self._overlay.to_read(values["cwd"])
        if values.get("shell"):
            lines = [command] if isinstance(command, (str, bytes)) else list(command)
            started = self.of_shell(os.fsdecode(lines[0]), environment)
            lines[0] = started.words
            values["args"] = lines[0] if isinstance(command, (str, bytes)) else lines
        else:
            words = _words(command)
            if values.get("executable") is not None:
                words[:1] = [os.fsdecode(values["executable"])]
            started = self.of_words(words, environment)
            if started.words is not words:
                values["args"] = started.words
                values.pop("executable", None)
        if started.environment is not environment:
            values["env"] = started.environment
        with on_disk():  # it uses other functions that start commands
            init(*bound.args, **bound.kwargs)
        values["self"].args = command

    def system(self, system: Callable[[Any], int], command: Any) -> int:
        """``os.system``."""
        if not self._overlay.is_on:
            return system(command)
        text = os.fsdecode(command)
        started = self.of_shell(text, None)
        if started.environment is None:
            return system(command)
        path = started.environment[_PATH]
        return system(f"export PATH='{path}'\n{started.words}")

    def execute(self, function: Callable[..., Any], /, path: Any, args: Any, *rest: Any) -> Any:
        """``os.execv`` and ``os.execve``: they take the place of this process."""
        if not self._overlay.is_on or not os.path.exists(path):
            return function(path, args, *rest)
        words = [os.fsdecode(path), *_words(args)[1:]]
        environment = rest[0] if rest else None
        started = self.of_words(words, environment)
        if started.words is words:
            return function(path, args, *rest)
        return function(started.words[0], started.words, *rest)

    def spawn(
        self, function: Callable[..., int], /, path: Any, argv: Any, env: Any, **options: Any
    ) -> int:
        """``os.posix_spawn``."""
        if not self._overlay.is_on:
            return function(path, argv, env, **options)
        words = [os.fsdecode(path), *_words(argv)[1:]]
        started = self.of_words(words, env)
        if started.words is words:
            return function(path, argv, env, **options)
        return function(started.words[0], started.words, env, **options)

    def of_words(self, words: list[str], environment: Any) -> _Started:
        """The command to start for one with its arguments."""
        kind = kind_of(words)
        is_shell = len(words) == 3 and os.path.basename(words[0]) in _SHELLS
        if is_shell and words[1] in {"-c", "-lc"}:
            return _Started(words, self.of_shell(words[2], environment).environment)
        if kind is Kind.CARRIED_OUT:
            name = os.path.basename(words[0])
            if file_commands.can_carry_out(name, words[1:]):
                return _Started(self._carried_out(name, words[1:]), environment)
        elif kind is Kind.PYTHON and _joins(environment):
            return _Started(words, environment)
        elif kind is Kind.READS:
            return _Started(self._translated(words), environment)
        self._tell(words)
        return _Started(words, environment)

    def of_shell(self, text: str, environment: Any) -> _Started:
        """The line to start for one of a shell."""
        commands = simple_commands(text)
        kind = kind_of_all(commands)
        if kind is Kind.UNKNOWN or (kind is Kind.PYTHON and not _joins(environment)):
            self._tell([text])
        elif kind is Kind.READS and not self._overlay.is_changed():
            return _Started(text, environment)
        folder = self._folder_of_commands()
        before = dict(os.environ if environment is None else environment)
        path = os.fsdecode(before.get(_PATH, os.defpath))
        return _Started(text, {**before, _PATH: f"{folder}{os.pathsep}{path}"})

    def _carried_out(self, name: str, arguments: Sequence[str]) -> list[str]:
        program = [sys.executable, "-I", "-S", _PROGRAM]
        return [*program, self._overlay.folder, name, *arguments]

    def _folder_of_commands(self) -> str:
        """A folder with the commands that the overlay carries out, for shells."""
        folder = os.path.join(self._overlay.folder, "commands")
        try:
            _mkdir(folder)
        except FileExistsError:
            return folder
        for name in CARRIED_OUT:
            words = " ".join(f"'{word}'" for word in self._carried_out(name, []))
            path = os.path.join(folder, name)
            with _open(path, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {words} "$@"\n')
            _chmod(path, 0o700)
        return folder

    def _translated(self, words: list[str]) -> list[str]:
        """The words, with the copies of files that the overlay has in their place."""
        if not self._overlay.is_changed():
            return words
        return [words[0], *(self._copy_of(word) for word in words[1:])]

    def _copy_of(self, word: str) -> str:
        option, sign, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
        if not path or not (os.path.lexists(path)):
            return word
        return f"{option}{sign}{self._overlay.to_read(path)}"

    def _tell(self, words: Sequence[str]) -> None:
        """Name a command that the overlay does not hold back, or refuse it."""
        overlay = self._overlay
        overlay.read_journal()
        text = " ".join(words)
        name = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        refuses, is_first = overlay.refuses_commands, not overlay.commands
        if name not in overlay.commands:
            overlay.tell("command", name, refuses)
        if refuses:
            raise CommandRefusedError(
                f"{name} was not started: pytorch-memlab runs this program several times, and"
                " cannot hold back what other programs write (--allow-writes lets them run)"
            )
        if is_first:
            print(
                f"pytorch-memlab: dry run: {name} runs as it is, and what it writes is on the disk;"
                " so do all commands that may change files",
                file=sys.stderr,
            )


def _words(command: Any) -> list[str]:
    if isinstance(command, (str, bytes, os.PathLike)):
        return [os.fsdecode(command)]
    return list(map(os.fsdecode, command))


def _joins(environment: Any) -> bool:
    """True if a Python with these variables joins the overlay."""
    if environment is None:
        return True
    return VARIABLE in environment or os.fsencode(VARIABLE) in environment


def install(overlay: Overlay, patches: Patches) -> None:
    commands = _Commands(overlay)
    patches.around(subprocess.Popen, "__init__")(commands.popen)
    patches.around(os, "system")(commands.system)
    patches.around(os, "execv", "execve")(commands.execute)
    names = [name for name in ("posix_spawn", "posix_spawnp") if hasattr(os, name)]
    patches.around(os, *names)(commands.spawn)
