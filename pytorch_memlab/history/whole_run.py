"""PyTorch's memory history of a whole run, whatever history the program itself records.

Note [One history for two]
A process has one memory history. Recording a run switches it on; a program may switch it on, clear
it and switch it off too. While a program records, its own options are in force, but no event is
left out of the history, and ``_snapshot`` gives the program those events that it would have
without us. Where the program's calls throw events away (a beginning, a clearing, an end), what
there is so far is kept here first, and after an end the recording of the run goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal

from ..simulation.allocator.events import HISTORY_ACTIONS

_ENABLED, _CONTEXT, _ENTRIES, _CLEARS, _SKIPPED, _CUDA = 0, 1, 3, 4, 7, 9
"""Positions of arguments of ``torch._C._cuda_record_memory_history``; older releases have fewer."""

_STATES: Final = ("state", "all")
_CONTEXTS: Final = (None, "state", "alloc", "all")
_NO_STACKS: Final = (None, "state")
"""Contexts in which events have no stack."""

Trace = list[dict[str, Any]]
"""Events of one GPU as a snapshot has them."""


_RECORD: Final = "_cuda_record_memory_history"
_RECORD_LEGACY: Final = "_cuda_record_memory_history_legacy"
_SNAPSHOT: Final = "_cuda_memorySnapshot"
_IS_ENABLED: Final = "_cuda_isHistoryEnabled"
"""The functions of ``torch._C`` that begin and end a history, and show it."""


@dataclass(frozen=True, slots=True)
class _ProgramOptions:
    """The options with which the program itself records."""

    entries: int
    skipped: frozenset[str] = frozenset()
    has_stacks: bool = True

    def visible_part(self, trace: Trace) -> Trace:
        if not self.entries:
            return []
        seen = [event for event in trace if event["action"] not in self.skipped][-self.entries :]
        if self.has_stacks:
            return seen
        stacks = ("frames", "forward_frames")
        return [{key: event[key] for key in event if key not in stacks} for event in seen]


_NOTHING: Final = _ProgramOptions(0)


class _Caller(threading.local):
    is_own = False


class WholeRunHistory:
    """Records the memory history of all CUDA devices while a program runs."""

    def __init__(self, *, keeps_events: bool = True) -> None:
        self._keeps_events = keeps_events
        self._caller = _Caller()
        self._kept: list[Trace] = []
        self._wanted = _NOTHING
        self._process = os.getpid()

    def start(self, process: ExitStack) -> None:
        """Record from now on, or once the program initialises CUDA."""
        import torch

        self._memory = torch.cuda.memory
        replacements: dict[str, Callable[..., object]] = {
            _RECORD: self._record,
            _RECORD_LEGACY: self._record_legacy,
            _SNAPSHOT: self._snapshot,
            _IS_ENABLED: lambda: self._wanted is not _NOTHING,
        }
        self._calls: dict[str, Callable[..., Any]] = {
            name: getattr(torch._C, name) for name in replacements
        }
        for name, replacement in replacements.items():
            process.callback(setattr, torch._C, name, self._calls[name])
            setattr(torch._C, name, replacement)
        process.callback(self._stop)
        torch.cuda._lazy_call(self._begin)

    def snapshot(self) -> dict[str, Any]:
        """All events so far, and the segments as they are now, as ``_snapshot`` gives them."""
        with self._own_call():
            snapshot: dict[str, Any] = self._memory._snapshot()
        snapshot["device_traces"] = _joined(self._kept, snapshot["device_traces"])
        return snapshot

    def _begin(self) -> None:
        if os.getpid() != self._process:
            return
        if self._calls[_IS_ENABLED]():
            self._wanted = _ProgramOptions(sys.maxsize)  # who called us records, and may go on
        else:
            self._record_own()

    def _stop(self) -> None:
        import torch

        if (
            self._wanted is _NOTHING
            and os.getpid() == self._process
            and torch.cuda.is_initialized()
        ):
            self._record_own(is_on=False)

    def _record_own(self, *, is_on: bool = True) -> None:
        wanted: Literal["all", "state"] = "all" if self._keeps_events else "state"
        with self._own_call():
            self._memory._record_memory_history(
                wanted if is_on else None, context=wanted, stacks="python", max_entries=sys.maxsize
            )

    @contextmanager
    def _own_call(self) -> Iterator[None]:
        """Calls of this thread are not the program's."""
        self._caller.is_own = True
        try:
            yield
        finally:
            self._caller.is_own = False

    # What the program calls

    def _record(self, *arguments_given: Any) -> None:
        if self._caller.is_own:
            self._calls[_RECORD](*arguments_given)
            return
        wanted, arguments = _options_of(arguments_given)
        if not self._keeps_events:
            wanted = _ProgramOptions(sys.maxsize) if arguments_given[_ENABLED] else _NOTHING
            arguments = list(arguments_given)
        clears = _flag(arguments_given, _CLEARS, default=False)
        self._change(wanted, clears, lambda: self._calls[_RECORD](*arguments))

    def _record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        record_stacks: bool = False,
        *options: Any,
    ) -> None:
        wanted = (
            _ProgramOptions(max(1, max_entries), has_stacks=record_stacks) if enabled else _NOTHING
        )
        clears = _flag(options, 1, default=False)
        arguments = (enabled, record_context, sys.maxsize, True, *options)
        if not self._keeps_events:
            arguments = (enabled, record_context, max_entries, record_stacks, *options)
        self._change(wanted, clears, lambda: self._calls[_RECORD_LEGACY](*arguments))

    def _change(self, wanted: _ProgramOptions, clears: bool, call: Callable[[], None]) -> None:
        """Carry out a call of the program that begins, changes, clears or ends its history."""
        was_recording, is_recording = (
            options is not _NOTHING for options in (self._wanted, wanted)
        )
        if not was_recording and not is_recording:
            return
        events: list[Trace] = []
        if self._keeps_events and (clears or was_recording is not is_recording):
            events = self._calls[_SNAPSHOT](None)["device_traces"]
        if not was_recording:
            self._kept, events = _joined(self._kept, events), []
            self._record_own(is_on=False)
        try:
            call()
        except BaseException:
            if not was_recording:
                self._record_own()
            raise
        self._kept = _joined(self._kept, events)
        self._wanted = wanted
        if not is_recording:
            self._record_own()

    def _snapshot(self, *arguments: Any) -> dict[str, Any]:
        snapshot: dict[str, Any] = self._calls[_SNAPSHOT](*arguments)
        if not self._caller.is_own:
            snapshot["device_traces"] = [
                self._wanted.visible_part(trace) for trace in snapshot["device_traces"]
            ]
        return snapshot


def _options_of(positional: Sequence[Any]) -> tuple[_ProgramOptions, list[Any]]:
    """The arguments that the program gives, and those that record every event."""
    arguments = list(positional)
    enabled, context = positional[_ENABLED], positional[_CONTEXT]
    skipped = frozenset(positional[_SKIPPED]) if len(positional) > _SKIPPED else frozenset()
    if enabled is None:
        return _NOTHING, arguments
    if enabled not in _STATES or context not in _CONTEXTS or not skipped <= HISTORY_ACTIONS:
        return _ProgramOptions(0), arguments  # PyTorch refuses it
    entries = max(1, positional[_ENTRIES]) if enabled == "all" else 1
    arguments[_ENABLED], arguments[_ENTRIES] = "all", sys.maxsize
    if context in _NO_STACKS:
        arguments[_CONTEXT] = "alloc"
    if skipped:
        arguments[_SKIPPED] = []
    if not _flag(positional, _CUDA, default=True):
        entries, arguments[_CUDA] = 0, True
    return _ProgramOptions(entries, skipped, context not in _NO_STACKS), arguments


def _flag(arguments: Sequence[Any], place: int, default: bool) -> bool:
    return bool(arguments[place]) if len(arguments) > place else default


def _joined(earlier: list[Trace], later: list[Trace]) -> list[Trace]:
    """The traces of each GPU, one after the other."""
    return [[*first, *then] for first, then in zip_longest(earlier, later, fillvalue=())]
