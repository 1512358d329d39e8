"""``[tool.pytorch-memlab]`` of a pyproject.toml: options of ``run`` for a whole project."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .notices import tell
from .parser import CommandParser, did_you_mean

_SECTION = "[tool.pytorch-memlab]"
_NOT_FOR_FILES = frozenset({"is_module", "script", "arguments"})


def add_configured(options: argparse.Namespace, parser: CommandParser, folder: str) -> None:
    """Fill in what the command line leaves open from the nearest pyproject.toml."""
    path, table = _nearest(Path(folder).absolute())
    if path is None:
        return
    actions = _configurable(parser)
    words = [word for key, value in table.items() for word in _words(path, actions, key, value)]
    parser.origin = f"{path}: "
    parsed = parser.parse([*words, "SCRIPT"])
    used = []
    for key in table:
        dest = actions[key].dest
        if not _is_given(options, dest) and _is_given(parsed, dest):
            setattr(options, dest, getattr(parsed, dest))
            used.append(key)
    if used:
        tell(f"options from {os.path.relpath(path)}: {', '.join(used)}")


def _is_given(options: argparse.Namespace, dest: str) -> bool:
    value = getattr(options, dest)
    return value is not None and value is not False  # 0 is given


def _nearest(folder: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The file whose section counts, and the section."""
    import tomllib

    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "pytorch-memlab" not in text:  # a mistake elsewhere in the file is not our concern
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("pytorch-memlab")
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is no TOML: {error}") from None
        if table is not None:
            if not isinstance(table, dict):
                raise UsageError(f"{path}: {_SECTION} is a table of options")
            return path, table
    return None, {}


def _configurable(parser: CommandParser) -> dict[str, argparse.Action]:
    """The options by their long names."""
    return {
        name.removeprefix("--"): action
        for action in parser.shown_actions()
        for name in action.option_strings
        if name.startswith("--") and "=" not in name and action.dest not in _NOT_FOR_FILES
    }


def _words(path: Path, actions: Mapping[str, argparse.Action], key: str, value: Any) -> list[str]:
    """An option as it would be on the command line."""
    if key not in actions:
        near = did_you_mean(key, actions) or f": the options are {', '.join(actions)}"
        raise UsageError(f"{path}: {_SECTION} has no option {key}{near}")
    if isinstance(value, list):
        return [word for item in value for word in _words(path, actions, key, item)]
    if isinstance(value, bool):
        if actions[key].nargs != 0:
            raise UsageError(f"{path}: {key} is not true or false: see pytorch-memlab run --help")
        return [f"--{key}"] * value
    if not isinstance(value, (str, int, float)):
        raise UsageError(f"{path}: {key} is a string, a number, true, false or a list of those")
    return [f"--{key}={value}"]
