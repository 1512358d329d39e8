"""Streams and events of simulated GPUs: memory belongs to its stream, work is done at once.

``stream_work.py`` has the exception: a stream that sleeps.
"""

from __future__ import annotations

import ctypes
import itertools
import time
import weakref
from abc import ABCMeta
from functools import partial
from typing import Any, Self

import torch

from ..._common.frames.traceback_frames import without_frames
from ..allocator.stream_work import Work
from ..machine.captures import CapturedEvent, refuse_captured_event
from ..machine.machine import Machine
from ..machine.refused_calls import refusal
from ..machine.streams import PRIORITIES, handle_of, priority_of

CUDA_DEVICE_TYPE = 1  # ``c10::DeviceType::CUDA``, as stream triples name it

_new_event_handles = itertools.count(0x1000, 0x10)


class SimulatedStream:
    """``torch.Stream`` of a simulated GPU: an id that separates free blocks."""

    machine: Machine

    @without_frames
    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = CUDA_DEVICE_TYPE,
    ) -> None:
        if device_index is None:
            device_index = _gpu_index(self.machine, device)
        if stream_id is None:
            stream_id = self.machine.new_stream(device_index, priority)
        self.stream_id = stream_id
        self.device_index = device_index
        self.device_type = device_type
        self.device = torch.device("cuda", device_index)

    @property
    def native_handle(self) -> int:
        """A number in place of CUDA's pointer."""
        return handle_of(self.stream_id, self.device_index)

    @without_frames
    def wait_event(self, event: Any) -> None:
        event.wait(self)

    @without_frames
    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    @without_frames
    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        event = self._new_event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        self.machine.captures.refuse_wait(self.device_index, self.stream_id)
        return _is_done(self.machine, self.device_index, _unfinished_work(self))

    def is_capturing(self) -> bool:
        captures = self.machine.captures
        return captures.of_stream(self.device_index, self.stream_id) is not None

    def synchronize(self) -> None:
        """Frees that wait for this stream's work complete."""
        self.machine.synchronize_stream(self.device_index, self.stream_id)

    def __enter__(self) -> Self:
        thread, index = self.machine.thread, self.device_index
        thread.before_streams.append((thread.device, index, self.machine.current_stream(index)))
        thread.device = index
        thread.streams.use(index, self.stream_id)
        return self

    def __exit__(self, *exc: object) -> None:
        thread = self.machine.thread
        thread.device, index, stream = thread.before_streams.pop()
        thread.streams.use(index, stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and (
            self.stream_id == other.stream_id and self.device_index == other.device_index
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return (
            f"torch.Stream device_type=cuda, device_index={self.device_index}, "
            f"stream_id={self.stream_id}"
        )

    def _new_event(self) -> SimulatedEvent:
        return SimulatedEvent(self.device)


class SimulatedCUDAStream(SimulatedStream):
    """``torch.cuda.Stream``."""

    cuda_stream = SimulatedStream.native_handle

    @property
    def priority(self) -> int:
        """0 to -3, the lower the more urgent; without effect."""
        return priority_of(self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the most urgent priority that PyTorch uses."""
        return 0, 1 - PRIORITIES

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def _new_event(self) -> SimulatedEvent:
        return SimulatedCUDAEvent()


class SimulatedEvent:
    """``torch.Event`` of a simulated GPU: it happens when the work before it is done."""

    machine: Machine
    _is_external = False

    @without_frames
    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._set_up(_gpu_index(self.machine, device), enable_timing)

    def _set_up(self, index: int | None, enable_timing: bool) -> None:
        self.enable_timing = enable_timing
        self.event_id = 0
        self._index = index
        self._time: float | None = None
        self._work: Work | None = None
        self._captured: CapturedEvent | None = None

    @property
    def device(self) -> torch.device | None:
        """The GPU that it belongs to, None before it was recorded if none was named."""
        return None if self._index is None else torch.device("cuda", self._index)

    @without_frames
    def record(self, stream: Any = None) -> None:
        stream = self._stream_or_current(stream)
        self._belong_to(stream.device_index)
        self._work = _unfinished_work(stream)
        self._time = time.perf_counter() if self._work is None else self._work.end_time
        capture = self.machine.captures.of_stream(stream.device_index, stream.stream_id)
        self._captured = None
        if capture is not None and not self._is_external:
            capture.check()
            self._captured = CapturedEvent(capture, stream.stream_id)
        self.machine.traced("EventRecord", self.event_id, stream.native_handle)

    @without_frames
    def wait(self, stream: Any = None) -> None:
        if not self.event_id:
            return
        stream = self._stream_or_current(stream)
        if self.machine.captures and not self._is_external:
            self.machine.captures.wait(stream.device_index, stream.stream_id, self._captured)
        if self._work is not None:
            gpu = self.machine.gpu(stream.device_index)
            gpu.locked(gpu.allocator.work.wait, stream.stream_id, self._work)
        self.machine.traced("EventWait", self.event_id, stream.native_handle)

    def query(self) -> bool:
        refuse_captured_event(self._captured)
        return self._index is None or _is_done(self.machine, self._index, self._work)

    def synchronize(self) -> None:
        """Wait until all work before it is done."""
        if self._index is None or not self.event_id:
            return
        refuse_captured_event(self._captured)
        if self._work is not None:
            _finish(self.machine, self._index, self._work)
        self.machine.traced("EventSynchronization", self.event_id)

    @without_frames
    def elapsed_time(self, end_event: SimulatedEvent) -> float:
        """Milliseconds between two recorded events, by the clock of the CPU."""
        # What ``torch.cuda._sleep`` was asked to take counts as if it had.
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("both events need enable_timing=True")
        if self._time is None or end_event._time is None:
            raise ValueError("both events must be recorded before their time is taken")
        if not (self.query() and end_event.query()):
            raise RuntimeError(
                "CUDA error: device not ready: synchronize both events before their time is taken"
            )
        if self._index != end_event._index:
            raise RuntimeError(
                "CUDA error: invalid resource handle: the events belong to different GPUs"
            )
        return (end_event._time - self._time) * 1e3

    ipc_handle = refusal("torch.Event.ipc_handle")  # no other process has the GPU
    from_ipc_handle = staticmethod(refusal("torch.Event.from_ipc_handle"))

    def __repr__(self) -> str:
        return (
            f"torch.Event device_type=cuda, device_index={self._index}, "
            f"event_flag={0 if self.enable_timing else 1}, event_id={self.event_id:#x}"
        )

    def _belong_to(self, index: int) -> None:
        """Belong to a GPU, as an event does from its first record on."""
        if self._index is not None and self._index != index:
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {index}."
            )
        self._index = index
        if not self.event_id:
            self.event_id = next(_new_event_handles)
            self.machine.traced("EventCreation", self.event_id)
            if self.machine.is_traced:
                # Other events die without a line of Python, in which an interrupt would be lost.
                traced = partial(self.machine.traced, "EventDeletion", self.event_id)
                weakref.finalize(self, traced).atexit = False

    def _stream_or_current(self, stream: Any) -> Any:
        if stream is not None:
            return stream
        index = self.machine.thread.device if self._index is None else self._index
        return SimulatedStream(stream_id=self.machine.current_stream(index), device_index=index)


class SimulatedCUDAEvent(SimulatedEvent):
    """``torch.cuda.Event``."""

    @without_frames
    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._set_up(None, enable_timing)
        self._is_external = external

    @property
    def cuda_event(self) -> int:
        """A number in place of CUDA's pointer, 0 before it was recorded."""
        return self.event_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.event_id)

    def _stream_or_current(self, stream: Any) -> Any:
        return torch.cuda.current_stream() if stream is None else stream

    def __repr__(self) -> str:
        if not self.event_id:
            return "<torch.cuda.Event uninitialized>"
        return f"<torch.cuda.Event {self.event_id:#x}>"


def _gpu_index(machine: Machine, device: Any) -> int:
    if type(device) is int and device < 0:
        device = None
    gpu = machine.find_gpu(device)
    if gpu is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return gpu.index


def _is_done(machine: Machine, index: int, work: Work | None) -> bool:
    """True if work is done, also by the clock."""
    if work is None or work.is_finished:
        return True
    if work.end_time > time.perf_counter():
        return False
    _finish(machine, index, work)
    return True


def _finish(machine: Machine, index: int, work: Work) -> None:
    gpu = machine.gpu(index)
    gpu.locked(work.finish)


def _unfinished_work(stream: SimulatedStream) -> Work | None:
    gpu = stream.machine.gpu(stream.device_index)
    return gpu.locked(gpu.allocator.work.last, stream.stream_id)


# Before torch.Stream was a class of C++, torch asked its streams to be of an abstract one.
for _name, _kind in (("_StreamBase", SimulatedStream), ("_EventBase", SimulatedEvent)):
    _base = getattr(getattr(torch, "_streambase", None), _name, None)
    if isinstance(_base, ABCMeta):
        _base.register(_kind)
