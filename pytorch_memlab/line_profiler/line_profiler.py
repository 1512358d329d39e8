"""``LineProfiler``: CUDA memory of every line of chosen functions."""

from __future__ import annotations

import reprlib
import sys
import traceback
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._common.interrupts.uninterrupted import uninterrupted
from .._common.interrupts.whole_exit import WholeExit
from .._common.patching.wrapping import within
from .._common.process.switch import is_switched_off
from .._common.process.uncaught_errors import chain, uncaught
from ..devices import find_devices, get_device
from ..errors import HistoryError, UsageError
from ..profiles.merging import added_up
from ..profiles.recorded import RecordedProfile
from ..records import (
    Approximated,
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    Note,
    NoteKind,
    Remark,
    remarks_on_files,
    uncounted_at_most,
)
from .columns import DEFAULT_COLUMNS
from .compiled_lines import CompiledLines
from .device_selection import DeviceSelection
from .facts_of_run import RunTime, calls_between, measured_devices, measured_now, notes_on_limits
from .function_intervals import FunctionIntervals
from .function_source import FunctionSource, function_source
from .line_records import LineRecords, RecordsDisplay, selected_code_ids
from .line_store import LineStore
from .recorded_lines import RecordedLines
from .registration import resolve
from .reloaded_functions import (
    is_made_otherwise_now,
    member_named,
    number_all_as_in_files,
    number_as_in_file,
)
from .tracer import current_tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike
    from types import CodeType, FunctionType
    from typing import Self

    import torch

    from ..history.holders import PeakHolders
    from ..history.model import AllocationHistory
    from ..history.recorder import Recording
    from .saved_profile import SavedProfile

__all__ = ["DEFAULT_COLUMNS", "LineProfiler"]


class LineProfiler(RecordedLines):
    """Memory of each line of registered functions, on every device that the process uses.

    Args:
        *functions: what to profile: functions, methods, classes, modules, properties, partials,
            ``nn.Module`` instances and classes.
        target_gpu: measure on this device alone: index, string or ``torch.device``.
        history: whether every allocation and free is kept for ``history()``: 46 bytes for each,
            and the stacks once each.
        history_max: how many events of each device are kept at most, the last ones; None for all.

    Raises:
        NotAFunctionError: something that has no Python source lines.
        UsageError: a limit that is no number from 1 on, or that nothing is kept for.
        UnknownDeviceError: there is no such device.

    >>> import torch
    >>> from pytorch_memlab.simulation import simulate
    >>> def work():
    ...     return torch.zeros(1024, device="cuda")
    >>> with simulate("24GiB"):
    ...     with LineProfiler(work) as prof:
    ...         kept = work()
    ...     prof.display(columns="delta").report.tables[0].rows
    {1: (0,), 2: (4096,)}
    """

    def __init__(
        self,
        *functions: Any,
        target_gpu: int | str | torch.device | None = None,
        history: bool = False,
        history_max: int | None = None,
    ) -> None:
        if history_max is not None:
            _check_limit(history_max, history=history)
        self._code_infos: dict[int, FunctionInfo] = {}
        self._unread: dict[int, Callable[[], FunctionSource]] = {}
        self._codes: dict[int, CodeType] = {}
        self._functions: dict[int, weakref.ref[FunctionType]] = {}
        self._modules: dict[int, str] = {}
        self._stale: dict[str, None] = {}
        self._selection = DeviceSelection(target_gpu)
        self._raw_line_records = LineStore(self._selection.first_device)
        self._target_gpu = target_gpu
        self._listener = FunctionIntervals(self._raw_line_records, self._selection)
        self._compiled_lines = CompiledLines(
            self._raw_line_records, self._selection, self._codes, self._listener
        )
        self._keeps_history = history
        self._history_max = history_max
        self._recordings: dict[int | None, Recording] = {}
        self._depth = 0
        self._time = RunTime()
        self._failures: dict[tuple[int, int], int] = {}
        self.enabled = False
        resolved = [resolve(function) for function in functions]
        for function in resolved:
            self._register(function)

    @property
    def target_gpu(self) -> int | str | torch.device | None:
        """The only device that is measured, None for every one that the process uses."""
        return self._target_gpu

    @target_gpu.setter
    def target_gpu(self, target: int | str | torch.device | None) -> None:
        self._selection.set_target(target)
        self._target_gpu = target
        if self.enabled:
            with uninterrupted():
                self._stop_recording()
                self._recording().begin()

    def add_function(self, func: Any) -> None:
        """Profile one more function, also while the profiler is on.

        Args:
            func: as the class takes them.

        Raises:
            NotAFunctionError: something that has no Python source lines.
        """
        self._register(resolve(func))

    def add_code(
        self,
        code: CodeType,
        qual_name: str,
        source: Iterable[str] | None = None,
        folded: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Profile a code object that no function holds yet, such as one of a compiled script.

        Args:
            code: what runs.
            qual_name: what reports call it.
            source: its lines from ``code.co_firstlineno`` on, None where there are none.
            folded: first and last lines of what reports leave out of the source, such as the
                bodies of functions within it.
        """
        info = FunctionInfo(
            qual_name,
            code.co_filename,
            code.co_firstlineno,
            None if source is None else tuple(source),
            tuple(folded),
        )
        self._register_code(code, info)

    def add_unread(
        self, functions: Iterable[tuple[CodeType, str, Callable[[], FunctionSource]]]
    ) -> None:
        """Profile many functions, most of which never run: the source of those that did is read.

        Args:
            functions: code, name in reports, and what reads the source.
        """
        new = []
        for code, qual_name, read in functions:
            if id(code) not in self._codes:
                new.append(code)
                self._codes[id(code)] = code
                self._unread[id(code)] = read
                self._code_infos[id(code)] = FunctionInfo(
                    qual_name, code.co_filename, code.co_firstlineno, None
                )
        if new:
            self._codes_changed(new)

    def _read_sources(self) -> None:
        """Read the source of functions of which a line was recorded."""
        for code_id in self._raw_line_records.code_ids() & self._unread.keys():
            info = self._code_infos[code_id]
            first_line, lines, is_stale = self._unread.pop(code_id)()
            self._code_infos[code_id] = replace(info, first_line=first_line, source=lines)
            if is_stale:
                self._stale[info.qual_name] = None

    def enable(self) -> None:
        """Begin to record; a second call has no effect, nor has any if ``PYTORCH_MEMLAB=0``."""
        if not self.enabled and not is_switched_off():
            number_all_as_in_files()
            with uninterrupted():
                self._selection.begin()
                current_tracer().watch(self._listener, self._codes.values())
                self._time.begin()
                self.enabled = True
                self._recording().begin()
                self._compiled_lines.start()

    def disable(self) -> None:
        """Record no more; what was recorded stays. A second call has no effect."""
        if self.enabled:
            with uninterrupted():
                self._compiled_lines.stop()
                current_tracer().unwatch(self._listener)
                self._selection.end()
                self._time.end()
                self._depth = 0
                self.enabled = False
                self._stop_recording()

    def register_callback(self) -> None:
        """Follow the functions again if it is on, where another tool has taken Python's tracing."""
        if self.enabled:
            with uninterrupted():
                current_tracer().watch(self._listener, self._codes.values())

    def clear(self) -> None:
        """Forget all records and functions."""
        with uninterrupted():
            self._clear()

    def _clear(self) -> None:
        was_on = self.enabled
        if was_on:
            current_tracer().unwatch(self._listener)
        self._raw_line_records.clear()
        self._selection.forget()
        self._listener.forget_ends()
        self._code_infos.clear()
        self._unread.clear()
        self._codes.clear()
        self._compiled_lines.codes_changed()
        self._functions.clear()
        self._modules.clear()
        self._stale.clear()
        self._stop_recording()
        self._recordings.clear()
        self._failures.clear()
        self._time = RunTime()
        if was_on:
            self._time.begin()
            self._selection.begin()
            current_tracer().watch(self._listener, ())
            self._recording().begin()

    def records(self) -> LineRecords:
        """Everything recorded so far, as data."""
        if self.enabled:
            current_tracer().notice_ends()
        self._read_sources()
        ends = self._listener.ends()
        return LineRecords(
            self._raw_line_records, self._code_infos, self._notes(), ends, dict(self._failures)
        )

    def note_failure(self, error: BaseException) -> None:
        """Mark the lines of an unhandled error if a GPU ran out of memory; else nothing."""
        report = uncaught.add(error)
        if report is None or report.facts is None:
            return
        for chained_error in chain(error):
            for frame, line in traceback.walk_tb(chained_error.__traceback__):
                code_id = id(frame.f_code)
                if code_id in self._codes:
                    self._failures[code_id, line] = report.facts.request.requested

    def recorded(self, *, with_history: bool = True) -> RecordedProfile:
        """Everything recorded so far and what is known of the run."""
        records = self.records()
        places = {code_id: place for place, code_id in enumerate(self._code_infos)}
        entries = tuple(self._raw_line_records.entries(places))
        devices = {device.info.name: measured_now(device) for device in self._selection.devices()}
        for share in self._selection.peak_shares():
            if share.device in devices:
                devices[share.device] = replace(
                    devices[share.device],
                    is_lower_bound=share.is_lower_bound,
                    assumed_sizes=share.assumed_sizes,
                    peak_at_most=share.at_most,
                    uncounted_at_most=uncounted_at_most(share.approximations),
                    needed_at_most=uncounted_at_most(share.approximations, is_needed=True),
                )
        peaks = self._recording().all_peak_holders()
        history = None
        if self._keeps_history and with_history:
            with suppress(HistoryError):  # nothing took memory
                history = self._recording().history()
        return RecordedProfile(
            (self._time.run(is_dry_run=self._selection.is_dry_run),),
            measured_devices(entries, devices, peaks),
            tuple(self._code_infos.values()),
            entries,
            added_up(calls_between(self._raw_line_records, self._codes, places)),
            DEFAULT_COLUMNS,
            notes=(*records.notes, *notes_on_limits(history)),
            ends=records.ends,
            failures={
                (places[code_id], line): size
                for (code_id, line), size in self._failures.items()
                if code_id in places
            },
            peaks=peaks,
            history=history,
        )

    def indexes_of(self, func: object) -> tuple[int, ...]:
        """Places of functions among those of ``recorded``."""
        places = {code_id: place for place, code_id in enumerate(self._code_infos)}
        return tuple(places[code_id] for code_id in selected_code_ids(func, self._code_infos))

    @staticmethod
    def load(path: str | PathLike[str]) -> SavedProfile:
        """Read a file that ``save`` or ``pytorch-memlab run -o`` wrote. Nothing in it is executed.

        Args:
            path: of the file.

        Returns:
            An object that displays as the profiler does.

        Raises:
            ProfileError: the file is no saved profile; the message says what it is.
        """
        from .saved_profile import load

        return load(path)

    def peak_holders(self, device: int | str | torch.device | None = None) -> PeakHolders:
        """The holders of the memory of a device when its active bytes were highest.

        The bytes by source line, function, module, category and stack each add up to that peak,
        which is the highest that the device's allocator counted while the profiler was on. What
        the backward pass takes counts at the line of the forward op that caused it.

        On a simulated GPU, and for the tensors of the host where there is no GPU, this is recorded
        while the profiler is on; its memory grows with the blocks in use, not with the events. On
        a real GPU it takes ``LineProfiler(..., history=True)``.

        Args:
            device: index, string or ``torch.device``; None for ``target_gpu``, and without that
                for the device with the highest peak.

        Returns:
            the holders; ``by_line()``, ``by_function()``, ``by_module()``, ``by_category()`` and
            ``by_stack()`` list them, ``to_dataframe()`` gives a table.

        Raises:
            HistoryError: nothing was recorded; the message says why.
            UnknownDeviceError: there is no such device.
        """
        target = self._target_gpu if device is None else device
        return self._recording().peak_holders(_index_of(target))

    def history(self) -> AllocationHistory:
        """Every allocation and free since the profiler was on first, with stacks and categories.

        Returns:
            the history of the GPUs of the simulation that was on last, or of the host.

        Raises:
            HistoryError: the profiler was made without ``history=True``, or nothing was recorded.
        """
        return self._recording().history()

    def forget(self, func: Any) -> None:
        """Drop the records of a function; it stays registered.

        Args:
            func: as ``add_function`` takes it.
        """
        for function in resolve(func):
            self._raw_line_records.forget(id(function.__code__))

    def __enter__(self) -> Self:
        self._depth += 1
        try:
            self.enable()
        except BaseException:  # Ctrl-C too, which waited until all was on
            self._leave(None, [])
            raise
        return self

    def _leave(self, error: BaseException | None, mark: list[None]) -> None:
        if not mark:
            if error is not None:
                uncaught.add(error)
                self.note_failure(error)
            # No call comes between the two, and so no interrupt.
            self._depth -= 1
            mark += (None,)
        if self._depth <= 0:
            self.disable()

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_leave)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate: profile this function whenever it runs.

        Args:
            func: a function; also one of coroutines, generators or asynchronous generators.

        Returns:
            a function that does the same, measured.
        """
        self.add_function(func)
        return within(lambda: self, func)

    def __repr__(self) -> str:
        recorded = LineRecords(self._raw_line_records, self._code_infos).summary()
        return f"<{type(self).__name__} of {recorded}, {'on' if self.enabled else 'off'}>"

    def _display(self, func: Any, columns: str | Iterable[str] | None) -> RecordsDisplay:
        return self.records().display(func, columns)

    def _register(self, functions: list[FunctionType]) -> None:
        for function in functions:
            number_as_in_file(function)
            code, name = function.__code__, function.__qualname__
            first_line, lines, is_stale = function_source(code, name)
            self._register_code(code, FunctionInfo(name, code.co_filename, first_line, lines))
            self._functions[id(code)] = weakref.ref(function)
            self._modules[id(code)] = function.__module__
            if is_stale:
                self._stale[name] = None

    def _register_code(self, code: CodeType, info: FunctionInfo) -> None:
        if id(code) in self._codes:
            return
        self._codes[id(code)] = code
        self._code_infos[id(code)] = info
        self._codes_changed([code])

    def _codes_changed(self, new: Iterable[CodeType]) -> None:
        """Watch codes from now on."""
        self._compiled_lines.codes_changed()
        if self.enabled:
            generated = [other for code in new for other in self._listener.generated_for(code)]
            current_tracer().watch(self._listener, (*new, *generated))

    def _recording(self) -> Recording:
        """The recording of peak holders, of the device that is measured now."""
        from ..history.recorder import Recording

        index = _index_of(self._target_gpu)
        if index not in self._recordings:
            self._recordings[index] = Recording(
                index, history=self._keeps_history, history_max=self._history_max
            )
        return self._recordings[index]

    def _stop_recording(self) -> None:
        for recording in self._recordings.values():
            recording.end()

    def _notes(self) -> list[Note]:
        devices = self._raw_line_records.devices() or [self._selection.first_device().info]
        edited = tuple(
            self._code_infos[code_id].qual_name
            for code_id in self._functions
            if self._is_edited(code_id)
        )
        unmet = self._selection.unmet_assumptions()
        return [
            *([Remark(NoteKind.SWITCHED_OFF)] if is_switched_off() else []),
            *_device_notes(devices),
            *self._approximation_notes(),
            *remarks_on_files(self._selection.files()),
            *([Remark(NoteKind.UNMET_ASSUMPTIONS, unmet)] if unmet else []),
            *([Remark(NoteKind.STALE_SOURCES, tuple(self._stale))] if self._stale else []),
            *([Remark(NoteKind.EDITED_FUNCTIONS, edited)] if edited else []),
        ]

    def _is_edited(self, code_id: int) -> bool:
        """True if the function of a code, or what its module has instead now, has another code."""
        function: Any = self._functions[code_id]()
        if function is None:
            module = sys.modules.get(self._modules[code_id])
            name = self._code_infos[code_id].qual_name
            if is_made_otherwise_now(self._codes[code_id], name, module):
                return True
            function = member_named(module, name)
        return hasattr(function, "__code__") and id(function.__code__) != code_id

    def _approximation_notes(self) -> list[Note]:
        """Approximations of these lines, and of the peaks that they are part of."""
        in_lines = self._raw_line_records.approximations()
        kinds: dict[ApproximationKind, list[Approximation]] = {
            kind: [] for kind in ApproximationKind
        }
        for approximation in self._selection.approximations():
            if approximation.key in in_lines:
                kinds[approximation.kind].append(approximation)
        shares = self._selection.peak_shares() if self._raw_line_records.has_entries() else ()
        return [
            *(Approximated(tuple(kind)) for kind in kinds.values() if kind),
            *(share for share in shares if not share.is_exact),
        ]


def _check_limit(history_max: object, *, history: bool) -> None:
    if isinstance(history_max, bool) or not isinstance(history_max, int) or history_max < 1:
        quoted_limit = reprlib.repr(history_max)
        raise UsageError(f"history_max is a number of events from 1 on, not {quoted_limit}")
    if not history:
        raise UsageError("history_max limits the history: give history=True too")


def _index_of(target: int | str | torch.device | None) -> int | None:
    """The index under which the history has a device; None for every device."""
    from ..history.model import HOST

    if target is None or isinstance(target, int):
        return target
    kind, _, index = str(target).partition(":")
    if kind == "cpu":
        return HOST
    name = get_device(target).name if not index.isdecimal() else f"{kind}:{index}"
    return int(name.rpartition(":")[2])


def _device_notes(devices: list[DeviceInfo]) -> list[Note]:
    simulated = [device for device in devices if device.simulated]
    notes: list[Note] = []
    if simulated:
        names = tuple(device.name for device in simulated)
        notes.append(Remark(NoteKind.SIMULATED_GPUS, names, simulated[0].description))
    if any(device.name == "cpu" for device in devices):
        has_gpu = find_devices()[0].name != "cpu"
        kind = NoteKind.CPU_TENSORS if has_gpu else NoteKind.CPU_TENSORS_WITHOUT_GPU
        notes.append(Remark(kind))
    return notes
