"""Streams and events of a simulated GPU: work is done at once, memory belongs to its stream."""

from __future__ import annotations

import itertools
import time
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

import torch

from .transfer import place_of_device

if TYPE_CHECKING:
    from .machine import Machine

CUDA_DEVICE_TYPE = 1
"""``c10::DeviceType::CUDA``, as stream triples name it."""

_new_ids = itertools.count(1)


class SimulatedStream:
    """A CUDA stream: an id that separates free blocks; work on it is done when it is given.

    Args:
        device: GPU of the stream, the current one if None.
        priority: kept, without effect.
        stream_id: of an existing stream.
        device_index: GPU of an existing stream.
        device_type: of an existing stream, without effect.
    """

    machine: Machine

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
            device_index = place_of_device(self.machine, device)
        self.stream_id = next(_new_ids) if stream_id is None else stream_id
        self.device_index = device_index
        self.device_type = device_type
        self.priority = priority
        self.cuda_stream = self.stream_id
        self.device = torch.device("cuda", device_index)

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """Record an event, a new one if none is given."""
        event = SimulatedEvent() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: never."""
        return False

    def synchronize(self) -> None:
        """Frees that wait for this stream's work complete."""
        self.machine.gpu(self.device_index).call("synchronize", self.stream_id)

    def __enter__(self) -> SimulatedStream:
        """Use this stream in this thread."""
        streams = self.machine.thread.streams
        self._before = streams.get(self.device_index, 0)
        streams[self.device_index] = self.stream_id
        return self

    def __exit__(self, *exc: object) -> None:
        """Use the stream that was in use before."""
        self.machine.thread.streams[self.device_index] = self._before

    def __eq__(self, other: object) -> bool:
        """Streams are equal that have the same id on the same GPU."""
        return isinstance(other, SimulatedStream) and (other.stream_id, other.device_index) == (
            self.stream_id,
            self.device_index,
        )

    def __hash__(self) -> int:
        """Of id and GPU."""
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        """As torch shows a stream."""
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class SimulatedEvent:
    """A CUDA event that happens when it is recorded, on the host's clock.

    Args:
        enable_timing: whether ``elapsed_time`` may be asked.
        blocking: without effect.
        interprocess: without effect.
        external: without effect.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self._recorded: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether all work before it is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: SimulatedEvent) -> float:
        """Milliseconds of the host's clock between two recorded events.

        Raises:
            ValueError: one of them was not recorded with timing on.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("both events need enable_timing=True")
        if self._recorded is None or end_event._recorded is None:
            raise ValueError("both events must be recorded before their time is taken")
        return (end_event._recorded - self._recorded) * 1e3


def _register_with_older_torch() -> None:
    """Before torch.Stream was a class of C++, torch asked its streams to be of an abstract one."""
    bases = getattr(torch, "_streambase", None)
    for name, kind in (("_StreamBase", SimulatedStream), ("_EventBase", SimulatedEvent)):
        base = getattr(bases, name, None)
        if isinstance(base, ABCMeta):
            base.register(kind)


_register_with_older_torch()
