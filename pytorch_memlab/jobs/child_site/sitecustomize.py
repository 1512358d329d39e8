"""Python runs this when a process of a job starts.

The process of a rank becomes one of ``pytorch-memlab run``, with the same program. Any other, such
as the launcher, goes on with the ``sitecustomize`` that it would have run without this one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

_VARIABLE = "PYTORCH_MEMLAB_RUN"
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.join(_FOLDER, *[os.pardir] * 2)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def _loaded(name: str, path: str) -> Any:
    """A module of the package, which itself would import too much."""
    spec: Any = importlib.util.spec_from_file_location(name, os.path.join(_PACKAGE, path))
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The options of Python, and the program with its arguments."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "-m"):
        if words[place] == "-c" or (words[place][:2] == "-c" and words[place][2:3] != "h"):
            return words, []
        place += 2 if words[place] in _WITH_VALUE else 1
    return words[:place], words[place:]


def _become_rank(options: list[str]) -> None:
    """Run the program of this process under ``pytorch-memlab run``, if a launcher started it."""
    python, program = _split(sys.orig_argv[1:])
    if not program or program[0] == "-":
        return
    is_module = program[0] == "-m"
    target = program[1] if is_module else program[0]
    names = _loaded("_pytorch_memlab_launch_names", "jobs/launch_names.py")
    if names.is_launcher(target, is_module=is_module):
        return
    ranks = _loaded("_pytorch_memlab_ranks", "_common/process/ranks.py")
    if not ranks.this_rank().launcher:
        return
    del os.environ[_VARIABLE]  # the processes that a rank starts are no ranks
    run = [os.path.join(_FOLDER, "run_rank.py"), "run", *options, *["-m"] * is_module, "--"]
    words = [sys.executable, *python, *run, target, *program[1 + is_module :]]
    os.execv(sys.executable, words)


if __name__ == "sitecustomize":
    if _VARIABLE in os.environ:
        _become_rank(json.loads(os.environ[_VARIABLE]))
    _after = _loaded("_pytorch_memlab_next", "_common/process/next_sitecustomize.py")
    _after.run_next_sitecustomize(_FOLDER)
