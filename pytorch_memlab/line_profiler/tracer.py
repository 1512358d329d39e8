"""Line events of chosen functions: the protocols, and the choice of the tracer.

No torch here: a tracer says where the program is, its listeners measure. ``sys.monitoring`` serves
from Python 3.12, ``sys.settrace`` below; the environment variable ``PYTORCH_MEMLAB_TRACER``
(``monitoring`` or ``settrace``) forces one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Protocol

from pytorch_memlab._common.made_once import made_once
from pytorch_memlab.errors import UsageError

TRACER_VARIABLE = "PYTORCH_MEMLAB_TRACER"


class FrameListener(Protocol):
    """What is told about one running frame of a watched code."""

    def line(self, line: int, /) -> None:
        """The frame arrived at ``line``: the open interval ends, a new one begins, a hit."""

    def resume(self, line: int, /) -> None:
        """The frame stands in the middle of ``line``: an interval begins, without a hit.

        A generator or coroutine goes on, or tracing began while the frame was running.
        """

    def leave(self) -> None:
        """The open interval ends, if there is one.

        The frame returned, yielded, waits or unwound, or tracing ended.
        """

    def drop(self) -> int | None:
        """The open interval counts for nothing, for nobody knows when it ended.

        Returns:
            Its line, None if no interval is open.
        """


class LineListener(Protocol):
    """What is told about the frames of watched codes."""

    def enter(self, code: CodeType, line: int, /) -> FrameListener:
        """A frame of ``code`` is there; ``line``, its first line, has an interval from now.

        ``resume`` follows at once where the frame was already running.
        """

    def tracing_ended(self, where: str, thread: int) -> None:
        """No frame of a thread is traced any more, though the watch goes on.

        ``where`` is such as ``at train.py:12``.
        """

    def tracing_began_again(self, thread: int) -> None:
        """The frames of a thread of which ``tracing_ended`` told are traced again."""


class LineTracer(Protocol):
    """Tells listeners what the frames of the codes that they watch do, in all traced threads."""

    @property
    def name(self) -> str:
        """``sys.settrace`` or ``sys.monitoring``."""

    @property
    def reason(self) -> str:
        """Why this one, in a sentence."""

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        """Tell ``listener`` about frames of ``codes``, running ones too; again for more codes."""

    def unwatch(self, listener: LineListener) -> None:
        """End the listener's open intervals; with the last listener the tracer is given back."""

    def notice_ends(self) -> None:
        """Tell the listeners of tracing that has ended without a word, now rather than later."""


@made_once
def current_tracer() -> LineTracer:
    """The process' one tracer, chosen at the first call.

    Returns:
        The one that ``PYTORCH_MEMLAB_TRACER`` names; else ``sys.monitoring`` where Python has it,
        and ``sys.settrace`` where it has not or while other tools hold all its tool ids.

    Raises:
        UsageError: the variable holds another word, or ``monitoring`` before Python 3.12.
    """
    from pytorch_memlab.line_profiler.monitoring_tracer import MonitoringTracer
    from pytorch_memlab.line_profiler.settrace_tracer import SettraceTracer

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
    if forced == "settrace":
        return SettraceTracer(f"{TRACER_VARIABLE}=settrace asks for it")
    if forced == "monitoring":
        return MonitoringTracer(f"{TRACER_VARIABLE}=monitoring asks for it")
    if not has_monitoring:
        return SettraceTracer(f"{python} has no sys.monitoring, which is new in 3.12")
    return _MonitoringFirst()


class _MonitoringFirst:
    """``sys.monitoring``, and ``sys.settrace`` where a first watch finds no free tool id."""

    def __init__(self) -> None:
        from pytorch_memlab.line_profiler.monitoring_tracer import MonitoringTracer
        from pytorch_memlab.line_profiler.settrace_tracer import SettraceTracer

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
        from pytorch_memlab.line_profiler.monitoring_tracer import NoFreeToolError

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
