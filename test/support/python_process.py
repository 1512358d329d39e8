"""Python programs in processes of their own, which start in a fraction of Python's time.

They are forks of a process that has torch and pytorch_memlab imported, see ``fork_server``. What a
test needs of the start of Python itself (its options, ``site``, imports of torch) needs a real
process: `subprocess.run`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from pytorch_memlab.simulation.child_processes.start import not_simulated
from support.fork_server import answer

SERVER = Path(__file__).with_name("fork_server.py")


def run_python(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | int | None = None,
    imports_package: bool = False,
) -> subprocess.CompletedProcess[str]:
    """The result of ``subprocess.run([sys.executable, *arguments], text=True)``.

    Args:
        arguments: ``-c`` and a program, ``-m`` and a module, or a script; then its arguments.
        cwd: the folder to run it in, by default the present one.
        env: its environment, by default the present one.
        input: what its standard input gives.
        stdout: a file or descriptor; by default what is written comes back as text.
        stderr: the same, or ``subprocess.STDOUT``.
        imports_package: it imports pytorch_memlab itself; else all modules are there.

    Raises:
        ValueError: the environment has variables that Python reads when it starts.
    """
    request: dict[str, Any] = {
        "arguments": [os.fspath(each) for each in arguments],
        "cwd": os.fspath(cwd or os.getcwd()),
        "env": dict(os.environ if env is None else env),
        "imports_package": imports_package,
    }
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as error:
        given.write(input.encode())
        given.seek(0)
        streams = [given, out if stdout is None else stdout, error if stderr is None else stderr]
        if stderr == subprocess.STDOUT:
            streams[2] = streams[1]
        code = _server().run(request, streams)
        texts = [_text(written) for written in (out, error)]
    return subprocess.CompletedProcess([sys.executable, *request["arguments"]], code, *texts)


class ForkedPython:
    """A program that runs beside this one, with the methods of ``Popen`` that ``fit`` calls.

    Args:
        arguments: those of ``run_python``.
        output: the file for what it prints.

    Raises:
        ValueError: as ``run_python``.
    """

    def __init__(self, arguments: Sequence[str], output: IO[bytes]) -> None:
        request = {"arguments": [*arguments], "cwd": os.getcwd(), "env": dict(os.environ)}
        with open(os.devnull, "rb") as nothing:
            self._answer = _server().begin(request, [nothing, output, output])
        self._process = self._number()
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None as long as it runs."""
        if self._code is None and select.select([self._answer], [], [], 0)[0]:
            self.wait()
        return self._code

    def kill(self) -> None:
        """End it."""
        os.kill(self._process, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return the exit code."""
        if self._code is None:
            self._code = self._number()
            self._answer.close()
        return self._code

    def _number(self) -> int:
        """The next line, and nothing behind it: what is read at once could not be waited for."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._answer.recv(1)
        return int(line)


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        # What a simulation around the first test that asks has set is for its own processes.
        self._started_with = {**not_simulated(os.environ), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SERVER), str(other.fileno())]
        self._process = subprocess.Popen(command, env=self._started_with, pass_fds=[other.fileno()])
        other.close()
        atexit.register(self.close)

    def run(self, request: dict[str, Any], streams: list[Any]) -> int:
        """Carry out a request, and return the exit code."""
        self._ask(self._socket, request, streams)
        with self._socket.makefile() as answer:
            child = int(answer.readline())
            try:
                return int(answer.readline())
            except BaseException:  # such as the end of the time of a test
                os.kill(child, signal.SIGKILL)
                self.close()
                _server.cache_clear()
                raise

    def begin(self, request: dict[str, Any], streams: list[Any]) -> socket.socket:
        """Begin to carry out a request, beside others; the socket has the answer as it comes."""
        asked, other = socket.socketpair()
        with other:
            socket.send_fds(self._socket, [b"{}"], [other.fileno()])
        self._ask(asked, request, streams)
        return asked

    def _ask(self, asked: socket.socket, request: dict[str, Any], streams: list[Any]) -> None:
        changed = request["env"].items() - self._started_with.items()
        if early := sorted(name for name, _ in changed if _is_read_at_start(name)):
            raise ValueError(f"Python has read {early[0]} when it forks: use subprocess.run")
        descriptors = [each if isinstance(each, int) else each.fileno() for each in streams]
        socket.send_fds(asked, [json.dumps(request).encode()], descriptors)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


class _ForkOfThis(_Server):
    """A fork of this process, which forks."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        self._started_with = dict(os.environ)
        self._asks = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            answer(other)
            sys.exit()
        other.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End it, from the process that it is a fork of alone."""
        if os.getpid() == self._asks:
            self._socket.shutdown(socket.SHUT_RDWR)
            os.waitpid(self._pid, 0)


_fork_of_this: list[_Server] = []


def forks_are_of_this() -> None:
    """Let all that is run from now on run in forks of this process as it is now."""
    _fork_of_this.append(_ForkOfThis())


@cache
def _server() -> _Server:
    return _fork_of_this[0] if _fork_of_this else _Server()


def _is_read_at_start(name: str) -> bool:
    return name.startswith(("PYTHON", "OMP_", "MKL_")) and name != "PYTHONPATH"


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
