"""Two trace functions in one thread's ``sys.settrace`` slot: another tracer's and ours.

The other one sees frames as if it were alone: every event of every frame, its own local trace
functions, its own ``f_trace`` at call events, and the slot is its own to change.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodType,
    WrapperDescriptorType,
)
from typing import Any, Protocol, TypeAlias

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]


class TraceSession(Protocol):
    """Our side of a chain."""

    over: bool

    def call(
        self, frame: FrameType, event: str, arg: object, local: TraceFunction | None
    ) -> TraceFunction | None:
        """Our local trace function for a frame that begins or goes on, ``local`` its last one."""

    def fail(self, frame: FrameType) -> None:
        """The other tracer raised: CPython stops tracing this thread."""

    def relink(self, frame: FrameType) -> None:
        """The other tracer changed the slot, and perhaps the frames' ``f_trace``."""


class Chain:
    """The trace function of one thread in which another tracer was found.

    Args:
        session: ours.
        theirs: the tracer found.

    Attributes:
        trace: the function for the ``sys.settrace`` slot.
        theirs: what the other tracer would have in the slot now.
    """

    __slots__ = ("session", "theirs", "trace")

    def __init__(self, session: TraceSession, theirs: TraceFunction) -> None:
        self.session = session
        self.theirs: TraceFunction | None = theirs
        self.trace: TraceFunction = self._trace

    def adopt(self, innermost: FrameType) -> None:
        """Pass on the local events of the frames that the other tracer follows already.

        One that is written in C follows all frames, without an ``f_trace``. It has none in them
        afterwards either: put back in the slot it follows them from C again at the next call.
        """
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_trace is not None:
                self.hold(frame, None)
            elif _is_c_callable(self.theirs):
                frame.f_trace = ChainedFrame(self, self.theirs, None, is_adopted=True).local
            frame = frame.f_back

    def hold(self, frame: FrameType, ours: TraceFunction | None) -> None:
        """Let a running frame call ours beside the local trace function that it has."""
        owner = getattr(frame.f_trace, "__self__", None)
        if isinstance(owner, ChainedFrame):
            owner.ours = ours
        else:
            owner = ChainedFrame(self, frame.f_trace, ours)
            frame.f_trace = owner.local
        owner.keep_line_events(frame)

    def call_theirs(
        self, function: TraceFunction, frame: FrameType, event: str, arg: object
    ) -> TraceFunction | None:
        """Call a function of the other tracer, then take the slot back if it changed it."""
        try:
            local: TraceFunction | None = function(frame, event, arg)
        except BaseException:
            self.theirs = None
            self.session.fail(frame)
            raise
        slot: Any = sys.gettrace()
        if slot is not self.trace:
            sys.settrace(self.trace)
            if slot is not self.theirs:
                self.theirs = slot
                self.session.relink(frame)
        return local

    def _trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if self.session.over:
            sys.settrace(self.theirs)
            return None if self.theirs is None else self.theirs(frame, event, arg)
        held = getattr(frame.f_trace, "__self__", None)
        ours = None
        if isinstance(held, ChainedFrame):
            ours = held.ours
            held.give_back(frame)
        theirs = None
        if self.theirs is not None:
            # As CPython does: None leaves the frame's f_trace as it is.
            theirs = self.call_theirs(self.theirs, frame, event, arg) or frame.f_trace
        ours = self.session.call(frame, event, arg, ours)
        if theirs is None and ours is None:
            return None
        chained = ChainedFrame(self, theirs, ours)
        chained.keep_line_events(frame)
        return chained.local


class ChainedFrame:
    """The local trace function of one frame, for two tracers.

    Args:
        chain: its thread's.
        theirs: the other tracer's local trace function.
        ours: our local trace function.
        is_adopted: theirs was not in the frame's ``f_trace``.
    """

    __slots__ = ("_chain", "_is_adopted", "_local", "_muted", "_theirs", "ours")

    def __init__(
        self,
        chain: Chain,
        theirs: TraceFunction | None,
        ours: TraceFunction | None,
        *,
        is_adopted: bool = False,
    ) -> None:
        self._chain = chain
        self._theirs = theirs
        self.ours = ours
        self._is_adopted = is_adopted
        self._muted = False
        self._local: TraceFunction | None = None

    @property
    def local(self) -> TraceFunction:
        """The function for the frame's ``f_trace``; kept here while the frame runs."""
        if self._local is None:
            self._local = self._trace
        return self._local

    def keep_line_events(self, frame: FrameType) -> None:
        """Turn line events on in a frame of ours; the other tracer, had it no use, gets none."""
        if self.ours is not None and not frame.f_trace_lines:
            self._muted = True
            frame.f_trace_lines = True

    def give_back(self, frame: FrameType) -> None:
        """Leave the frame to the other tracer, as that has it."""
        frame.f_trace = None if self._is_adopted else self._theirs
        if self._muted:
            self._muted = False
            frame.f_trace_lines = False

    def _trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if self._chain.session.over:
            self.give_back(frame)
            return None if self._theirs is None else self._theirs(frame, event, arg)
        local, is_return = self.local, event == "return"
        if is_return:
            self._local = None  # no cycle outlives the frame
            self._call_ours(frame, event, arg)
        if self._theirs is not None and not (self._muted and event == "line"):
            theirs = self._chain.call_theirs(self._theirs, frame, event, arg)
            self._theirs = theirs or self._theirs
        if not is_return:
            self._call_ours(frame, event, arg)
            self.keep_line_events(frame)
        return local

    def _call_ours(self, frame: FrameType, event: str, arg: object) -> None:
        if self.ours is not None:
            self.ours(frame, event, arg)


def _is_c_callable(function: Any) -> bool:
    """Whether it is an object of an extension type, which follows frames from C."""
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        return False
    return isinstance(type(function).__call__, WrapperDescriptorType)
