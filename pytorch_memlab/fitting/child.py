"""Runs a function in child processes: forks of this one, or else new Pythons.

Note [Forks for trials]
A fork has torch imported already, which takes a new Python a second or more. It ends without the
exit handlers of this process, but with those that the program registers. Its standard input is
empty, and what it prints goes to a file. torch runs on one thread there: the threads that it had
here do not exist in the fork, and work given to them would wait forever.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from .._common.process.working_folder import make_within
from ..errors import UsageError

Request = TypeVar("Request")
Result = TypeVar("Result")

_PAUSE: Final = 0.005
"""Seconds between two looks at the processes."""

_PR_SET_PDEATHSIG: Final = 1


def can_fork() -> bool:
    """True where processes are forked. On macOS, system libraries may fail in a fork."""
    return sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class ChildWork(Generic[Request, Result]):
    """Something to do in a child process."""

    function: Callable[[Request], Result]
    request: Request
    # makes the result of a process that ended without one, from its exit status; negative for a
    # signal
    lost: Callable[[int], Result]
    output: str = ""  # file for what it prints; empty for none
    needs_new_python: bool = False  # whether a fork of this process cannot do it


_elsewhere: list[Callable[[Sequence[ChildWork[Any, Any]]], Iterator[tuple[int, Any]]]] = []


@contextmanager
def done_elsewhere(
    run: Callable[[Sequence[ChildWork[Any, Any]]], Iterator[tuple[int, Any]]],
) -> Iterator[None]:
    """Let a function do what would be done in children of this process, as on a cluster."""
    _elsewhere.append(run)
    try:
        yield
    finally:
        _elsewhere.pop()


def run_in_children(
    works: Sequence[ChildWork[Request, Result]], processes: int
) -> Iterator[tuple[int, Result]]:
    """Do several things in processes, some at a time; when this is closed or fails, they end."""
    if _elsewhere:
        yield from _elsewhere[-1](works)
    else:
        yield from _run_here(works, processes)


def _run_here(
    works: Sequence[ChildWork[Request, Result]], processes: int
) -> Iterator[tuple[int, Result]]:
    forks = can_fork() and not any(work.needs_new_python for work in works)
    start: type[_Fork | _NewPython] = _Fork if forks else _NewPython
    with ExitStack() as exits:
        folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="pytorch-memlab-"))
        running: dict[int, _Fork | _NewPython] = {}
        exits.callback(_end, running)
        waiting = list(range(len(works)))
        while waiting or running:
            while waiting and len(running) < processes:
                index = waiting.pop(0)
                running[index] = start(works[index], os.path.join(folder, str(index)))
            statuses = {index: child.poll() for index, child in running.items()}
            for index, status in statuses.items():
                if status is None:
                    continue
                del running[index]
                path = os.path.join(folder, str(index))
                result = _result(path, works[index], status)
                if isinstance(result, _CannotTrain):
                    os.remove(path)  # a new Python may end without a result
                    start = _NewPython
                    waiting.insert(0, index)
                else:
                    yield index, result
            if set(statuses.values()) == {None}:
                time.sleep(_PAUSE)


def _end(running: dict[int, _Fork | _NewPython]) -> None:
    for child in running.values():
        with suppress(OSError):
            child.kill()
            child.wait()


def _result(path: str, work: ChildWork[Any, Any], status: int) -> Any:
    try:
        with open(path, "rb") as file:
            return pickle.load(file)  # noqa: S301 - our own process wrote it
    except (OSError, EOFError, pickle.UnpicklingError):
        if status > 0 and os.path.exists(_partial(path)):  # an error ended the writing of it
            folder = tempfile.gettempdir()
            raise UsageError(
                f"cannot write the result of a run to {folder}: the disk may be full (TMPDIR names"
                " another folder)"
            ) from None
        return work.lost(status)


class _Fork:
    """A fork of this process, with the methods of ``Popen``."""

    def __init__(self, work: ChildWork[Any, Any], result: str) -> None:
        _flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, from 3.12 on
            self._pid = os.fork()
        if not self._pid:
            _be_fork(work, result)

    def poll(self) -> int | None:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # it has ended, and this process ignores how (SIGCHLD)
            return 0
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        with _with_descendants(self._pid):
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


class _NewPython(subprocess.Popen[bytes]):
    """A new Python, where processes cannot be forked."""

    def __init__(self, work: ChildWork[Any, Any], result: str) -> None:
        request = f"{result}.request"
        try:
            with open(request, "wb") as file:
                file.write(request_of(work))
        except Exception as error:
            raise UsageError(
                "a new Python has to run the function, because this process cannot be forked (not"
                " on this system, after backward() here, or with what it uses on a GPU), and"
                f" {error}: make what it uses in the function, or run a script"
            ) from None
        with open(work.output or os.devnull, "wb") as output:
            super().__init__(
                [sys.executable, "-c", NEW_PYTHON, request, result],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        with _with_descendants(self.pid):
            super().kill()


@contextmanager
def _with_descendants(pid: int) -> Iterator[None]:
    """End a process with those that it has started, such as workers of its data loaders."""
    import psutil

    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        descendants = []
    yield
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()


def request_of(work: ChildWork[Any, Any]) -> bytes:
    """The content of the file that ``NEW_PYTHON`` reads."""
    import cloudpickle

    content: bytes = cloudpickle.dumps((work.function, work.request))
    return pickle.dumps(sys.path) + content


NEW_PYTHON: Final = """\
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    function, request = pickle.load(file)
from pytorch_memlab._common.process.working_folder import make_within
from pytorch_memlab.fitting.child import write
make_within(os.path.dirname(sys.argv[2]))
write(function(request), sys.argv[2])
"""


class _CannotTrain:
    """The result of a fork in which autograd does not work."""


def _can_train() -> bool:
    """True if autograd works in this fork."""
    # Where it has its own threads, such as one for each GPU, it refuses to work in a fork of a
    # process that has run a backward pass. There is no other way to ask.
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
        except RuntimeError:
            return False
    return True


def _be_fork(work: ChildWork[Any, Any], result: str) -> NoReturn:
    """The body of a fork. It never returns to the code of this process."""
    status, process = 1, os.getpid()
    gc.freeze()  # a collection would write to all pages, which the fork shares so far
    try:
        _end_with_parent()
        _forget_exit_handlers()
        _redirect(work.output)
        make_within(os.path.dirname(result))
        answer = work.function(work.request) if _can_train() else _CannotTrain()
        if os.getpid() == process:  # not one that the program forked
            write(answer, result)
        status = 0
        atexit._run_exitfuncs()
        _end_own_children()
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _end_with_parent() -> None:
    """Let the system end this fork if its parent is killed: see prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def write(result: Any, path: str) -> None:
    """Write a result; a file of the name is complete."""
    with open(_partial(path), "wb") as file:
        pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
    os.replace(_partial(path), path)


def _partial(path: str) -> str:
    return f"{path}.partial"


def _forget_exit_handlers() -> None:
    """Leave those of the process that was forked to it."""
    atexit._clear()
    finalizers: Any = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(finalizers):
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def _redirect(output: str) -> None:
    """Read nothing, and print to a file."""
    reading = os.open(os.devnull, os.O_RDONLY)
    writing = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((reading, 0), (writing, 1), (writing, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the rest of the process
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _end_own_children() -> None:
    """End the processes that the program has left, such as workers of its data loaders."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    for child in multiprocessing.active_children():
        if child.daemon and child._parent_pid == os.getpid():
            child.terminate()
