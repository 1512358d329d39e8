"""The choice of the tracer that gives line events.

``sys.monitoring`` serves from Python 3.12, ``sys.settrace`` below; the environment variable
``PYTORCH_MEMLAB_TRACER`` (``monitoring`` or ``settrace``) forces one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import CodeType, FrameType

from .._common.process.made_once import made_once
from ..errors import UsageError
from .monitoring_tracer import MonitoringTracer, NoFreeToolError
from .settrace_tracer import SettraceTracer
from .watched import FrameListener, LineListener, LineTracer

TRACER_VARIABLE = "PYTORCH_MEMLAB_TRACER"


@made_once
def current_tracer() -> LineTracer:
    """The one tracer of the process, chosen at the first call."""
    forced = os.environ.get(TRACER_VARIABLE, "")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    has_monitoring = sys.version_info >= (3, 12)
    if forced not in ("", "settrace", "monitoring"):
        raise UsageError(f"{TRACER_VARIABLE}={forced!r}: give 'settrace' or 'monitoring'")
    if forced == "monitoring" and not has_monitoring:
        raise UsageError(
            f"{TRACER_VARIABLE}=monitoring needs Python 3.12 or later, and this is {python}: "
            "give 'settrace'"
        )
    if forced:
        kind = SettraceTracer if forced == "settrace" else MonitoringTracer
        return kind(f"{TRACER_VARIABLE}={forced} asks for it")
    if not has_monitoring:
        return SettraceTracer(f"{python} has no sys.monitoring, which is new in 3.12")
    return _MonitoringFirst()


class _MonitoringFirst:
    """``sys.monitoring``, and ``sys.settrace`` where a first watch finds no free tool id."""

    def __init__(self) -> None:
        self._monitoring = MonitoringTracer("Python has sys.monitoring")
        self._settrace = SettraceTracer("")

    @property
    def name(self) -> str:
        return self._active.name

    @property
    def reason(self) -> str:
        return self._active.reason

    @property
    def _active(self) -> LineTracer:
        return self._settrace if self._settrace.watching else self._monitoring

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        codes = tuple(codes)
        try:
            self._active.watch(listener, codes)
        except NoFreeToolError as error:
            self._settrace.reason = str(error)
            self._settrace.watch(listener, codes)

    def unwatch(self, listener: LineListener) -> None:
        self._active.unwatch(listener)

    def notice_ends(self) -> None:
        self._active.notice_ends()

    def listener_of(self, frame: FrameType, listener: LineListener) -> FrameListener | None:
        return self._active.listener_of(frame, listener)

    def paused(self) -> AbstractContextManager[None]:
        return self._active.paused()
