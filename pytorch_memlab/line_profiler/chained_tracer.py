"""Another tracer in the slot of a thread goes on seeing frames as if it were alone.

An outer tracer may be in the slot already. The own one takes the slot and passes on every event, so
that the outer one sees every event of every frame, its local trace functions, and its ``f_trace``
at call events. It may change the slot.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any, Protocol, TypeAlias

from .watched import outward

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]


class OwnTracer(Protocol):
    """The own tracer, for the frames of a thread with another one."""

    over: bool  # whether it has given the threads back

    def call(
        self, frame: FrameType, event: str, arg: object, local: TraceFunction | None
    ) -> TraceFunction | None:
        """A frame begins or goes on, ``local`` being its last trace function."""

    def fail(self, frame: FrameType) -> None:
        """A trace function raises."""

    def relink(self, frame: FrameType) -> None:
        """Put the own local trace functions back where another tracer took them off."""


class Chain:
    """The trace function of one thread in which another tracer was found."""

    __slots__ = ("outer", "session", "trace")

    def __init__(self, session: OwnTracer, outer: TraceFunction) -> None:
        self.session = session
        self.outer: TraceFunction | None = outer  # what would be in the slot now
        self.trace: TraceFunction = self._trace  # the function for the slot

    def adopt(self, innermost: FrameType) -> None:
        """Pass on the local events of the frames that the outer tracer follows already."""
        # One that is written in C follows all frames, without an ``f_trace``. It has none in them
        # afterwards either: put back in the slot it follows them from C again at the next call.
        for frame in outward(innermost):
            if frame.f_trace is not None:
                self.hold(frame, None)
            elif _is_c_callable(self.outer):
                frame.f_trace = ChainedFrame(self, self.outer, None, is_adopted=True).local

    def hold(self, frame: FrameType, own: TraceFunction | None) -> None:
        """Let a running frame call the own trace function and the one that it has."""
        owner = getattr(frame.f_trace, "__self__", None)
        if isinstance(owner, ChainedFrame):
            owner.own = own
        else:
            owner = ChainedFrame(self, frame.f_trace, own)
            frame.f_trace = owner.local
        owner.keep_line_events(frame)

    def call_outer(
        self, function: TraceFunction, frame: FrameType, event: str, arg: object
    ) -> TraceFunction | None:
        """Call a function of the outer tracer, then take the slot back if it changed it."""
        try:
            local: TraceFunction | None = function(frame, event, arg)
        except BaseException:
            self.outer = None
            self.session.fail(frame)
            raise
        slot: Any = sys.gettrace()
        if slot is not self.trace:
            sys.settrace(self.trace)
            if slot is not self.outer:
                self.outer = slot
                self.session.relink(frame)
        return local

    def _trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if self.session.over:
            sys.settrace(self.outer)
            return None if self.outer is None else self.outer(frame, event, arg)
        held = getattr(frame.f_trace, "__self__", None)
        own = None
        if isinstance(held, ChainedFrame):
            own = held.own
            held.give_back(frame)
        outer = None
        if self.outer is not None:
            # As CPython does: None leaves the frame's f_trace as it is.
            outer = self.call_outer(self.outer, frame, event, arg) or frame.f_trace
        own = self.session.call(frame, event, arg, own)
        if outer is None and own is None:
            return None
        chained = ChainedFrame(self, outer, own)
        chained.keep_line_events(frame)
        return chained.local


class ChainedFrame:
    """The local trace function of one frame, for two tracers."""

    __slots__ = ("_chain", "_is_adopted", "_local", "_muted", "_outer", "own")

    def __init__(
        self,
        chain: Chain,
        outer: TraceFunction | None,
        own: TraceFunction | None,
        *,
        is_adopted: bool = False,
    ) -> None:
        self._chain = chain
        self._outer = outer
        self.own = own
        self._is_adopted = is_adopted  # the outer one was not in the frame's ``f_trace``
        self._muted = False
        self._local: TraceFunction | None = None

    @property
    def local(self) -> TraceFunction:
        """The function for the frame's ``f_trace``; kept here while the frame runs."""
        if self._local is None:
            self._local = self._trace
        return self._local

    def keep_line_events(self, frame: FrameType) -> None:
        """Turn line events on for the own tracer; an outer one that wants none gets none."""
        if self.own is not None and not frame.f_trace_lines:
            self._muted = True
            frame.f_trace_lines = True

    def give_back(self, frame: FrameType) -> None:
        """Leave the frame to the outer tracer."""
        frame.f_trace = None if self._is_adopted else self._outer
        if self._muted:
            self._muted = False
            frame.f_trace_lines = False

    def _trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if self._chain.session.over:
            self.give_back(frame)
            return None if self._outer is None else self._outer(frame, event, arg)
        local, is_return = self.local, event == "return"
        if is_return:
            self._local = None  # no cycle outlives the frame
            self._call_own(frame, event, arg)
        if self._outer is not None and not (self._muted and event == "line"):
            outer = self._chain.call_outer(self._outer, frame, event, arg)
            self._outer = outer or self._outer
        if not is_return:
            self._call_own(frame, event, arg)
            self.keep_line_events(frame)
        return local

    def _call_own(self, frame: FrameType, event: str, arg: object) -> None:
        if self.own is not None:
            self.own(frame, event, arg)


def _is_c_callable(function: Any) -> bool:
    """True for an object of an extension type, which follows frames from C."""
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        return False
    return isinstance(type(function).__call__, WrapperDescriptorType)
