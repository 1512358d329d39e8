"""Stream captures: which streams belong to one, in which order their work is, and what is refused.

Note [Work in a capture]
On a GPU a captured op does not run, so its kernels' memory is taken and no value changes. Here the
op runs, since the shapes of what follows need results; what it changed of tensors that were there
before is put back when the capture ends (``dispatch/captured_ops.py``). The order of streams is
kept as vector clocks: for each stream of a capture, how much of each other one comes before it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..allocator.blocks import PoolId
from .cuda_errors import cuda_error

if TYPE_CHECKING:
    from .simulated_gpu import SimulatedGPU

ERROR_MODES: Final = ("global", "thread_local", "relaxed")

Clock = dict[int, int]
"""By stream, how many pieces of its work come before."""

_ids = itertools.count(1)


class Capture:
    """A capture that is underway, or was."""

    def __init__(self, gpu: SimulatedGPU, stream: int, pool_id: PoolId, mode: str) -> None:
        self.id = next(_ids)
        self.gpu = gpu
        self.origin = stream
        self.pool_id = pool_id
        self.mode = mode
        self.thread = threading.get_ident()
        self.is_valid = True
        self.kernels = 0  # that were launched
        self.clocks: dict[int, Clock] = {stream: {}}
        self.recording: Any = None  # the ops with values, to run them again; None in a dry run
        self.register: Callable[[Any], None] | None = None
        """Registers the state of a generator at its first draw; None where the program has to."""

    def takes(self, stream: int) -> bool:
        """True if the requests of a stream go to the private pool."""
        return self.is_valid and stream in self.clocks

    def launch(self, stream: int, kernels: int = 1) -> None:
        """Let a stream do some work.

        Raises:
            RuntimeError: an error ended the capture before.
        """
        self.check()
        clock = self.clocks[stream]
        clock[stream] = clock.get(stream, 0) + 1
        self.kernels += kernels

    def check(self) -> None:
        if not self.is_valid:
            raise cuda_error("cudaErrorStreamCaptureInvalidated")

    def fail(self, name: str) -> RuntimeError:
        """End the capture by an error of CUDA, and return that."""
        self.is_valid = False
        return cuda_error(name)

    @property
    def has_unjoined_work(self) -> bool:
        """True if a stream has done something that the stream of the capture does not wait for."""
        joined = self.clocks[self.origin]
        return any(
            clock.get(stream, 0) > joined.get(stream, 0) for stream, clock in self.clocks.items()
        )


class CapturedEvent:
    """The work before an event that was recorded in a capture."""

    def __init__(self, capture: Capture, stream: int) -> None:
        self.capture = capture
        self.clock = capture.clocks[stream].copy()


class Captures:
    """The captures that are underway on all GPUs; false where there is none."""

    def __init__(
        self,
        before_first: Callable[[], object] = lambda: None,
        after_last: Callable[[], object] = lambda: None,
    ) -> None:
        self.underway: list[Capture] = []
        self._before_first, self._after_last = before_first, after_last
        self.pools: set[PoolId] = set()
        """Those that any capture took memory from."""

    def __bool__(self) -> bool:
        return bool(self.underway)

    def of_stream(self, index: int, stream: int) -> Capture | None:
        """The capture that a stream of a GPU belongs to."""
        for capture in self.underway:
            if capture.gpu.index == index and stream in capture.clocks:
                return capture
        return None

    def begin(self, capture: Capture) -> None:
        """Begin a capture; RuntimeError if its stream is captured already."""
        if self.of_stream(capture.gpu.index, capture.origin) is not None:
            raise cuda_error("cudaErrorIllegalState")
        if not self.underway:
            self._before_first()  # what is freed depends on the stream that is used then
        self.underway.append(capture)
        self.pools.add(capture.pool_id)

    def end(self, capture: Capture) -> None:
        """End a capture."""
        # Raises RuntimeError if it is not whole: an error came before, or a stream has unjoined
        # work.
        if capture.mode != "relaxed" and capture.thread != threading.get_ident():
            raise capture.fail("cudaErrorStreamCaptureWrongThread")
        self.underway.remove(capture)
        if not self.underway:
            self._after_last()
        capture.check()
        if capture.has_unjoined_work:
            raise capture.fail("cudaErrorStreamCaptureUnjoined")

    def refuse_wait(self, index: int, stream: int | None = None) -> None:
        """Refuse to wait for a captured stream, or a GPU that has one; the capture ends by it."""
        for capture in self.underway:
            if capture.gpu.index == index and (stream is None or stream in capture.clocks):
                raise capture.fail("cudaErrorStreamCaptureUnsupported")

    def refuse_unsafe_call(self, index: int, stream: int) -> None:
        """Refuse a call such as cudaMalloc, where a capture's error mode does."""
        # PyTorch asks CUDA to permit that of a stream which is captured. The capture ends by the
        # error.
        if self.of_stream(index, stream) is not None:
            return
        this_thread = threading.get_ident()
        for capture in self.underway:
            is_own = capture.mode == "thread_local" and capture.thread == this_thread
            if capture.mode == "global" or is_own:
                raise capture.fail("cudaErrorStreamCaptureUnsupported")

    def wait(self, index: int, stream: int, event: CapturedEvent | None) -> None:
        """Let a stream wait for an event, None for one outside of captures."""
        # Raises RuntimeError if that would join what must stay apart; the captures end by it.
        own = self.of_stream(index, stream)
        if event is None or event.capture not in self.underway:
            if own is not None:
                raise own.fail("cudaErrorStreamCaptureIsolation")
            return
        capture = event.capture
        capture.check()
        if own is None:
            if not stream:
                raise capture.fail("cudaErrorStreamCaptureImplicit")
            capture.clocks[stream] = event.clock.copy()
        elif own is not capture:
            own.is_valid = False
            raise capture.fail("cudaErrorStreamCaptureMerge")
        else:
            clock = own.clocks[stream]
            for other, count in event.clock.items():
                clock[other] = max(count, clock.get(other, 0))


def refuse_captured_event(event: CapturedEvent | None) -> None:
    """Refuse to query an event of a capture, or to wait for it; the capture ends by that."""
    if event is not None:
        raise event.capture.fail("cudaErrorCapturedEvent")


def pool_ids() -> Callable[[bool], PoolId]:
    """A function that makes ids: for a program that asks for one, or for a graph without."""
    asked, made = itertools.count(1), itertools.count(1)
    return lambda is_asked_for: (0, next(asked)) if is_asked_for else (next(made), 0)
