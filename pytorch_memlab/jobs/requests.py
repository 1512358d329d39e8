"""Requests between a process that is asked for its profile and one that asks.

Note [How a process is asked]
A process that can be asked listens at an address that its number and its user give: a socket in a
folder of the user's own, or on Windows a named pipe. Messages are JSON, so that reading one runs
nothing of the sender. The address goes with the process. After ``SIGKILL`` a socket stays that
nothing listens at, and the next process of that number takes its place.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final

from .._common.process.real_files import on_disk
from ..errors import UsageError

Message = dict[str, Any]

PATIENCE: Final = 20.0
"""Seconds to wait for an answer: the main thread of the process may be within a long call."""

_LONGEST: Final = 1 << 16
"""Bytes of a message."""


class NotListeningError(UsageError):
    """No process listens at an address."""


class Listening:
    """The address at which this process answers, until ``close``."""

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self._answer = answer
        self._process = os.getpid()
        with on_disk():
            self._address, self._listener = _listener(self._process)
        self._is_closed = False
        thread = threading.Thread(
            target=self._answer_always, name="pytorch-memlab requests", daemon=True
        )
        thread.start()

    def close(self) -> None:
        """Listen no more; in a process that was forked, the address stays that of its parent."""
        self._is_closed = True
        if os.getpid() != self._process:
            return
        with on_disk():
            with suppress(OSError, EOFError):
                Client(self._address).close()  # the thread waits for a process that asks
            with suppress(OSError):
                self._listener.close()
            if os.name == "posix":
                with suppress(OSError):  # other processes of this user listen there
                    Path(self._address).parent.rmdir()

    def _answer_always(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                continue
            with connection, suppress(OSError, EOFError):
                connection.send_bytes(_packed(self._answer_to(connection)))

    def _answer_to(self, connection: Connection) -> Message:
        try:
            request = json.loads(connection.recv_bytes(_LONGEST))
            return self._answer(request)
        except (UsageError, ValueError, TypeError, KeyError) as error:
            return {"error": str(error)}


def _listener(process: int, tries: int = 3) -> tuple[str, Listener]:
    """The address of a process, and what listens there."""
    try:
        address = _address(process, makes_folder=True)
        if os.name == "posix":
            Path(address).unlink(missing_ok=True)  # of a process that was killed
        return address, Listener(address)
    except (FileNotFoundError, NotListeningError):  # another process has removed the folder
        if tries == 1:
            raise
        return _listener(process, tries - 1)


def ask(process: int, request: Message) -> Message:
    """The answer of a process to a request."""
    # Raises NotListeningError if the process does not listen, and UsageError if it refuses or does
    # not answer in time.
    try:
        connection = Client(_address(process))
    except (OSError, EOFError):
        raise NotListeningError(f"process {process} cannot be asked") from None
    with connection:
        try:
            connection.send_bytes(_packed(request))
            if not connection.poll(PATIENCE):
                raise UsageError(
                    f"process {process} does not answer within {PATIENCE:.0f} s: its main thread is"
                    " within a long call"
                )
            answer: Message = json.loads(connection.recv_bytes(_LONGEST))
        except (OSError, EOFError, ValueError):
            raise UsageError(f"process {process} ended before it answered") from None
    if "error" in answer:
        raise UsageError(f"process {process}: {answer['error']}")
    return answer


def _packed(message: Message) -> bytes:
    return json.dumps(message).encode()


def _address(process: int, *, makes_folder: bool = False) -> str:
    """The address of a process of this user."""
    if sys.platform == "win32":
        return rf"\\.\pipe\pytorch-memlab-{process}"
    user = os.getuid()
    folder = Path(tempfile.gettempdir(), f"pytorch-memlab-{user}")
    if makes_folder:
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        status = folder.lstat()
    except FileNotFoundError:
        raise NotListeningError(f"process {process} cannot be asked") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise UsageError(f"{folder} is not a folder of this user alone: remove it")
    return str(folder / str(process))
