"""A launcher such as ``torchrun``, with every rank that it starts under ``run``.

The ranks inherit ``child_site`` on ``PYTHONPATH``, and in an environment variable the options of
``run``. So they do where ``srun`` or ``mpirun`` passes the environment on to other machines.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import psutil

from ..errors import UsageError
from .folder import JOB_VARIABLE

VARIABLE: Final = "PYTORCH_MEMLAB_RUN"
_FOLDER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child_site")
_RANK: Final = os.path.join(_FOLDER, "run_rank.py")
_PASSED_ON: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def name_job() -> None:
    """Give the job of this process and of those that it starts a name."""
    os.environ.setdefault(JOB_VARIABLE, secrets.token_hex(8))


def for_ranks(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which ranks run with these options of ``run``."""
    path = [_FOLDER, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, VARIABLE: json.dumps([*words]), "PYTHONPATH": os.pathsep.join(path)}


def launcher_command(command: Sequence[str], *, is_module: bool) -> list[str]:
    """The command line of a launcher: one on the PATH, or else one beside this Python."""
    name, *arguments = command
    if is_module:
        return [sys.executable, "-m", name, *arguments]
    path = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
    if path is None:
        raise UsageError(f"there is no command {name} on the PATH")
    return [path, *arguments]


def launched(command: Sequence[str], words: Sequence[str]) -> int:
    """Run a launcher until it ends, and return its exit code, as a shell has it."""
    launcher = subprocess.Popen(command, env=for_ranks(words, os.environ))
    with _signals_passed_on(launcher):
        while True:
            with suppress(KeyboardInterrupt):  # a terminal sends it to the launcher as well
                status = launcher.wait()
                return status if status >= 0 else 128 - status


def _signal_ranks(launcher: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to each rank on this machine that has a handler for it."""
    with suppress(psutil.Error):
        for process in psutil.Process(launcher.pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if _RANK in process.cmdline() and _handles(process.pid, number):
                    process.send_signal(number)


def _handles(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal, by what Linux says of it in proc(5)."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


@contextmanager
def _signals_passed_on(launcher: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send the launcher what ends a job, and the ranks themselves what asks for their files."""
    handlers: dict[int, Callable[[int, object], object]] = {
        number: lambda received, _frame: launcher.send_signal(received) for number in _PASSED_ON
    }
    if hasattr(signal, "SIGUSR1"):  # by default it ends a process, and so it does a launcher
        handlers[signal.SIGUSR1] = lambda received, _frame: _signal_ranks(launcher, received)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
