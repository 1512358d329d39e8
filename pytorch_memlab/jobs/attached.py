"""The recording of a process that goes on, begun and ended from outside."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import CodeType
from typing import Any, Final, Protocol

from .._common.frames.thread_frames import thread_frames
from .._common.frames.user_code import is_of_user
from .._common.process.uncaught_errors import first_line
from .._common.text.secrets_in_arguments import masked
from ..errors import MemlabError, UsageError
from ..line_profiler.facts_of_run import with_run_peaks
from ..line_profiler.line_profiler import LineProfiler
from ..line_profiler.source_functions import SourceFunctions
from ..profiles.growing_loops import growing_loops
from ..profiles.recorded import UNKNOWN_STATUS, RecordedProfile
from ..scopes import RunPeaks
from .black_box import BlackBox, is_within_package, taken
from .folder import JobFolder
from .requests import PATIENCE, Listening, Message


class Recorder(Protocol):
    """A recorder of this process."""

    def begin(self) -> None:
        """Record from now on."""

    def recorded(self) -> RecordedProfile:
        """The profile so far."""

    def end(self) -> None:
        """Record no more."""


class BlackBoxOwner(Protocol):
    """The owner of the black box of this process, if there is one."""

    black_box: BlackBox | None


class AttachedProcess:
    """Answers requests for the profile of this process."""

    def __init__(self, recorder: Recorder, holder: BlackBoxOwner) -> None:
        self._recorder = recorder
        self._holder = holder
        self._attached: BlackBox | None = None
        self._thread = ExitStack()  # of the black box
        self._listening: Listening | None = None

    def start(self, process: ExitStack) -> None:
        """Answer from now on, until a stack closes."""
        process.callback(self.close)
        # Without a folder for it, or with a name too long for a socket, no process can ask.
        with suppress(OSError, UsageError):
            self._listening = Listening(self._answer)

    def close(self) -> None:
        """Answer no more, and write what was recorded since ``attach``."""
        self.stop_answering()
        if self._attached is not None and not self._attached.is_finished:
            self._finish(lambda: _with_exit(self._recorder.recorded()))

    def stop_answering(self) -> None:
        """Leave nothing of the address of this process."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    def _answer(self, request: Message) -> Message:
        work = {
            "hello": lambda _request: {},
            "attach": self._attach,
            "save": self._save,
            "detach": self._detach,
        }
        return work[request["do"]](request)

    def _attach(self, request: Message) -> Message:
        if self._holder.black_box is None:
            folder = JobFolder(request["folder"], replaces_older=False)
            box = BlackBox(folder, request.get("save_every"), is_private=False)
            self._recorder.begin()
            box.start(self._thread, self._recorder.recorded)
            self._holder.black_box = self._attached = box
        return self._save(request)

    def _save(self, _request: Message) -> Message:
        box = self._holder.black_box
        if box is None:
            raise UsageError("nothing is recorded: attach to it first")
        box.save_now()
        return {"folder": os.path.abspath(box.folder.name)}

    def _detach(self, _request: Message) -> Message:
        if self._attached is None:
            raise UsageError("nothing is attached to it")
        return {"file": self._finish(lambda: taken(self._recorder.recorded)[0])}

    def _finish(self, take: Callable[[], RecordedProfile]) -> str | None:
        """End what ``attach`` began, and write the last profile; the name of its file."""
        box, self._attached, self._holder.black_box = self._attached, None, None
        assert box is not None
        self._recorder.end()
        return box.finish(take(), None)


def _with_exit(profile: RecordedProfile) -> RecordedProfile:
    """The profile of a process that ends: no exit handler is told its exit status."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    status, exception = (UNKNOWN_STATUS, "") if error is None else (1, first_line(error))
    return replace(
        profile, runs=(replace(profile.runs[0], exit_status=status, exception=exception),)
    )


class RunningProgram:
    """Records the functions of a program that is running already."""

    # Made by ``begin``: most processes that can be attached to never are.
    _profiler: LineProfiler
    _peaks: RunPeaks

    def begin(self) -> None:
        """Record the lines of the user's modules, also in frames that run."""
        # Raises UsageError if the main thread does not come to it.
        in_main_thread(self._begin)

    def _begin(self) -> None:
        self._profiler = LineProfiler()
        self._peaks = RunPeaks()
        for code in _running_modules():
            functions = SourceFunctions(code, _text(code.co_filename), "<module>")
            for function in (*functions.defined, functions.top_level):
                functions.add_to(self._profiler, function)
        for module in list(sys.modules.values()):
            if is_of_user(getattr(module, "__file__", None) or ""):
                try:
                    self._profiler.add_function(module)
                except MemlabError:  # it defines no function
                    continue
        self._peaks.begin()
        self._profiler.enable()

    def end(self) -> None:
        """Record no more."""
        in_main_thread(self._end)

    def _end(self) -> None:
        self._profiler.disable()
        self._peaks.end()

    def recorded(self) -> RecordedProfile:
        """The profile so far."""
        profile = self._profiler.recorded(with_history=False)
        run = replace(profile.runs[0], program=sys.argv[0], arguments=masked(sys.argv[1:]))
        devices = with_run_peaks(profile.devices, self._peaks.highest)
        return replace(profile, runs=(run,), devices=devices, growing=growing_loops(profile))


def _running_modules() -> list[CodeType]:
    """The code of the user's modules whose top level runs, as that of a script does."""
    modules: dict[int, CodeType] = {}
    for frame in thread_frames().values():
        inner: Any = frame
        while inner is not None:
            code = inner.f_code
            if code.co_name == "<module>" and is_of_user(code.co_filename):
                modules[id(code)] = code
            inner = inner.f_back
    return list(modules.values())


def _text(filename: str) -> str | None:
    try:
        with open(filename, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


_PAUSE: Final = 0.005
"""Seconds until the main thread is asked again, if it was within this package."""

_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def in_main_thread(work: Callable[[], None]) -> None:
    """Do work in the main thread, between two instructions of its program."""
    # Raises UsageError if the main thread does not come to it, as within a long call.
    if threading.current_thread() is threading.main_thread():
        work()
        return
    request = _Request(work)
    patience = time.monotonic() + PATIENCE / 2
    while not request.is_done.is_set() and time.monotonic() < patience:
        request.send()
        request.has_come.wait(patience - time.monotonic())
        request.is_done.wait(_PAUSE)
    request.is_late = True
    if not request.is_done.is_set():
        raise UsageError("its main thread is within a long call: try again")
    if request.error is not None:
        raise UsageError(str(request.error))


class _Request:
    """Work for the main thread, which Python lets in between any two of its instructions."""

    # That is no moment for it while the program is within this package.

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # Python calls it by its address: it lives as long as the process, which may call it late.
        self._pending = _PendingCall(self._call)
        _sent.append(self._pending)
        self.has_come = threading.Event()
        self.is_done = threading.Event()
        self.is_late = False
        self.error: Exception | None = None

    def send(self) -> None:
        """Let the main thread call it once."""
        self.has_come.clear()
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _call(self, _argument: object) -> int:
        if not (self.is_late or self.is_done.is_set() or is_within_package(sys._getframe(1))):
            try:
                self._work()
            except Exception as error:
                self.error = error
            self.is_done.set()
        self.has_come.set()
        return 0


_sent: list[Any] = []


class OwnBlackBox:
    """The black box of a process that has none before something attaches to it."""

    black_box: BlackBox | None = None
