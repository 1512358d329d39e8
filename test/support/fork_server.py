"""A Python process that imports torch once and forks for each program that it is asked to run.

A fork has the arguments, folder, environment and standard streams of its request, runs the
program as ``python`` would, and ends through the interpreter's own end: exit handlers, threads,
the program's modules and objects, exit codes, the signal of an unhandled Ctrl-C. Only what was
imported before the fork is not taken down. No module of pytorch_memlab is among that.

A request is JSON with the three streams as file descriptors beside it. The answer has a line with
the fork's process id, and a line with its exit code as ``waitpid`` has it. A request without
anything has a socket beside it: another fork then answers what is asked there, at the same time.
"""

from __future__ import annotations

import array
import atexit
import builtins
import ctypes
import gc
import importlib
import io
import json
import linecache
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import ModuleType
from typing import Any

IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.data",
    "jinja2",
    "multiprocessing.pool",
    "numpy",
    "pandas",
    "pandas.io.formats.style",
    "psutil",
    "pygments.formatters",
    "pygments.lexers",
    "rich.console",
    "rich.table",
)
"""What a process that profiles a program imports sooner or later."""

PACKAGE = "pytorch_memlab"
_NOT_IMPORTED = {
    "__main__",
    "compiled",
    "integrations",
    "notebook",
    "pytest_memlab",
    "pytest_plugin",
    "watch_screen",
}
"""Modules and packages of pytorch_memlab that import large libraries, or run something."""


def next_fork(asked: socket.socket) -> dict[str, Any]:
    """Answer requests until this process is a fork that has a program to run."""
    others: list[int] = []
    while True:
        others = [other for other in others if not os.waitpid(other, os.WNOHANG)[0]]
        message, ancillary, _, _ = asked.recvmsg(2**20, socket.CMSG_SPACE(3 * 4))
        if not message:
            os._exit(0)  # the process that asked is gone
        streams = array.array("i", ancillary[0][2])
        child = os.fork()
        if child == 0 and message == b"{}":
            asked.close()
            return next_fork(socket.socket(fileno=streams[0]))
        if child == 0:
            asked.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return json.loads(message)
        for stream in streams:
            os.close(stream)
        if message == b"{}":
            others.append(child)
            continue
        asked.send(f"{child}\n".encode())
        asked.send(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


def prepare(request: dict[str, Any]) -> None:
    """Give this process the folder, the environment and the streams that a new one would have."""
    os.chdir(request["cwd"])
    before, after = os.environ.get("PYTHONPATH", ""), request["env"].get("PYTHONPATH", "")
    sys.path[: len(_folders(before))] = _folders(after)
    if request.get("imports_package"):
        for module in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[module]
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # asked for, maybe, under another TMPDIR
    sys.orig_argv[1:] = request["arguments"]
    sys.stdin = sys.__stdin__ = _stream(0, "<stdin>", "strict")
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", "strict")
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", "backslashreplace")


def _folders(path: str) -> list[str]:
    return path.split(os.pathsep) if path else []


def _stream(number: int, name: str, errors: str) -> io.TextIOWrapper:
    mode = "w" if number else "r"
    binary: Any = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
    binary.raw.name = name
    lines = number == 2 or binary.isatty()
    text: Any = io.TextIOWrapper(binary, "utf-8", errors, line_buffering=lines)
    text.mode = mode
    return text


def run(arguments: list[str]) -> None:
    """Run what the arguments of ``python`` name, in a ``__main__`` that is new."""
    option, *rest = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__)
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    if option == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])
        return
    if option == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
        vars(main).update(__loader__=BuiltinImporter)
        if sys.version_info >= (3, 13):  # whose tracebacks show these lines
            lines = rest[0].splitlines(keepends=True)
            linecache.cache["<string>"] = len(rest[0]), None, lines, "<string>"
    elif option.startswith("-"):
        raise ValueError(f"no fork has the option {option}: start a process")
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.realpath(option)))
        path = os.path.abspath(option)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        loader = SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    exec(code, vars(main))


def end_with(error: BaseException) -> None:
    """Show an error as a new process has it, without the frames of this file."""
    ours = error.__traceback__
    while ours and ours.tb_frame.f_code.co_filename == __file__:
        ours = ours.tb_next
    error.__traceback__ = ours
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, ours)
        sys.excepthook = lambda *_: None  # it is shown; what follows is the interpreter's


def import_to_stay() -> None:
    """Import what forks use, which their ends leave as it is: torch's end takes 0.3 s."""
    before = set(sys.modules)
    imported: set[str] = set()
    libc = ctypes.CDLL(None)

    def leave() -> None:
        kept = [sys.modules.pop(name, None) for name in imported]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        if "triton" in imported:
            builtins._silence = _Silence()

    atexit.register(leave)  # the first, and so called after all others
    for name in IMPORTED:
        importlib.import_module(name)
    imported |= sys.modules.keys() - before
    if hasattr(libc, "on_exit"):  # glibc's: ends before the destructors of torch's libraries
        libc.on_exit(libc._exit, None)


def import_package(name: str = PACKAGE) -> None:
    """Import a package with its modules; none does anything when it is imported."""
    for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
        if module.name.rpartition(".")[2] in _NOT_IMPORTED:
            continue
        if module.ispkg:
            import_package(module.name)
        else:
            importlib.import_module(module.name)


class _Silence:
    """Ends standard error once the program's modules are gone, of which builtins is the last.

    From Triton 3.9 on, nanobind then writes there what was not taken down.
    """

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_WRONLY)
        self._dup2 = os.dup2

    def __del__(self) -> None:
        self._dup2(self._nothing, 2)


def _serve() -> None:
    number = int(sys.argv[1])
    sys.path.pop(0)
    import_to_stay()
    import_package()
    gc.collect()
    gc.freeze()  # what is imported need not be searched, nor copied, in each fork
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answer(socket.socket(fileno=number))


def answer(asked: socket.socket) -> None:
    """Fork for each request that comes, and run its program in the fork, which returns from here.

    As long as it is asked, the process itself stays here.
    """
    request = next_fork(asked)
    prepare(request)
    try:
        run(request["arguments"])
    except BaseException as error:
        end_with(error)
        raise


if __name__ == "__main__":
    _serve()
