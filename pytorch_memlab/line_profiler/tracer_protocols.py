"""The protocols of tracers and of their listeners.

No torch here: a tracer says where the program is, its listeners measure.

Note [Frames and generators in the two tracers]

An interval belongs to a frame, and begins and ends with the frame's own events. Calls are part of
the line that makes them. ``enter`` comes with a new frame, ``line`` with each line, ``leave`` when
the frame returns, yields, waits or unwinds, and ``resume`` when a suspended frame goes on.

No listener or tracer holds a frame, which would keep the locals of a suspended generator alive.
Frames are found by ``id``. A generator that is dropped while it is suspended may end without an
event. The next frame at its address takes its place, so there are never more entries than
addresses of frames.

``sys.monitoring`` gives events for watched codes only, in all threads, and tells a start from a
resumption. An exception in a callback reaches the program, and the events go on.

``sys.settrace`` gives ``call`` for both. A frame starts if its last instruction is the one before
its first line (``WatchedCode.is_starting``). CPython ends tracing of a thread when a trace function
raises, and another tool may take its slot. An interval that was open then counts only if the
tracer itself saw the end, for otherwise nothing tells when it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Protocol


class FrameListener(Protocol):
    """Listens to one running frame of a watched code."""

    def line(self, line: int, /) -> None:
        """The frame arrived at ``line``: the open interval ends, a new one begins, a hit."""

    def resume(self, line: int, /) -> None:
        """The frame stands in the middle of ``line``: an interval begins, without a hit.

        A generator or coroutine goes on, or tracing began while the frame was running.
        """

    def leave(self) -> None:
        """The open interval ends, if there is one."""

    def drop(self) -> int | None:
        """The open interval counts for nothing; returns its line, None if none is open."""


class LineListener(Protocol):
    """Listens to the frames of watched codes."""

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
