"""Attaching to a process from another one."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import suppress
from typing import Final

from ..errors import UsageError
from .requests import PATIENCE, NotListeningError, ask

_HOW: Final = (
    "start it with pytorch-memlab run, put the line `import pytorch_memlab.jobs.attachable` into"
    " the program, or run it with Python 3.14 or later, as this command"
)


def attach(process: int, folder: str, save_every: float | None) -> str:
    """Let a process write its profile into a folder; the folder that it writes to."""
    # Raises UsageError if the process cannot be asked, or refuses.
    request = {"do": "attach", "folder": folder, "save_every": save_every}
    try:
        return str(ask(process, request)["folder"])
    except NotListeningError:
        _let_listen(process)
    return str(ask(process, request)["folder"])


def detach(process: int) -> str | None:
    """End what ``attach`` began; the name of the last file, if there is one."""
    # Raises UsageError if nothing is attached to the process.
    try:
        file = ask(process, {"do": "detach"})["file"]
    except NotListeningError:
        raise UsageError(f"nothing is attached to process {process}") from None
    return None if file is None else str(file)


def detach_if_there(process: int) -> None:
    """End what ``attach`` began, unless the process has ended."""
    with suppress(UsageError):
        detach(process)


def folder_of(process: int) -> str | None:
    """The folder into which a process writes its profile, now too; None if it writes none."""
    try:
        return str(ask(process, {"do": "save"})["folder"])
    except UsageError:
        return None


def _let_listen(process: int) -> None:
    """Let a process of Python 3.14 import what answers."""
    if not _runs(process):
        raise UsageError(f"there is no process {process} of this user")
    run_in = getattr(sys, "remote_exec", None)
    if run_in is None:
        raise UsageError(f"process {process} cannot be attached to: {_HOW}")
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as script:
        script.write("import pytorch_memlab.jobs.attachable\n")
    try:
        run_in(process, script.name)
        patience = time.monotonic() + PATIENCE
        while time.monotonic() < patience:
            time.sleep(0.1)
            with suppress(NotListeningError):
                ask(process, {"do": "hello"})
                return
    except (OSError, RuntimeError) as error:
        raise UsageError(f"process {process} cannot be attached to: {error}; {_HOW}") from None
    finally:
        os.unlink(script.name)
    raise UsageError(
        f"process {process} does not answer within {PATIENCE:.0f} s: pytorch_memlab must be"
        " installed in its environment, and its main thread out of long calls"
    )


def _runs(process: int) -> bool:
    import psutil

    with suppress(psutil.Error):
        target = psutil.Process(process)
        return os.name != "posix" or target.uids().real == os.getuid()
    return False
