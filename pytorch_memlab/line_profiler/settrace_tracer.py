"""The tracer on ``sys.settrace``, for Python before 3.12."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import CodeType
from typing import TYPE_CHECKING

from pytorch_memlab.line_profiler.settrace_session import SettraceSession
from pytorch_memlab.line_profiler.watched import WatchedCodes

if TYPE_CHECKING:
    from pytorch_memlab.line_profiler.tracer_protocols import LineListener


class SettraceTracer:
    """Line events from ``sys.settrace``, in the watching thread and the threads started since.

    A tracer found in place is called with every event, and put back with the last ``unwatch``.
    CPython stops tracing a thread when either tracer raises. One that is set later, as by
    ``breakpoint()``, replaces this one in its thread until the next ``watch`` after it has gone.
    Listeners are told of such an end, at once or when it is noticed. Threads that C++ starts, such
    as those of autograd for a GPU, are not traced. ``sys.monitoring`` has none of these limits.
    """

    name = "sys.settrace"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._codes = WatchedCodes()
        self._session: SettraceSession | None = None
        self._lock = threading.RLock()

    @property
    def watching(self) -> bool:
        """True while there is a listener."""
        return bool(self._codes)

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        """Tell ``listener`` about frames of ``codes``; see ``LineTracer``."""
        with self._lock:
            self.notice_ends()
            self._codes.add(listener, codes)
            if self._session is None:
                self._session = SettraceSession(self._codes)
            self._session.install()
            self._session.follow_running_frames()

    def unwatch(self, listener: LineListener) -> None:
        """End the listener's watch; see ``LineTracer``."""
        with self._lock:
            self.notice_ends()
            self._codes.remove(listener)
            if self._session is not None:
                self._session.end_unwatched_frames()
                if not self._codes:
                    self._session.close()
                    self._session = None

    def notice_ends(self) -> None:
        """Tell the listeners where tracing has ended without a word; see ``LineTracer``."""
        with self._lock:
            if self._session is not None:
                self._session.notice_ends()
