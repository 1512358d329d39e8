"""``torch.Generator("cuda")``: a seed and an offset, as CUDA's is, that draws on the CPU.

CUDA's generator (``aten/src/ATen/cuda/CUDAGeneratorImpl.cpp``) counts what was drawn in an offset,
and a draw is a function of the seed and the offset. So is one here, though of other values: the
CPU's generator starts from both for each op.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ..._common.frames.traceback_frames import without_frames
from .captures import Capture

_Generator = torch._C.Generator
_STATE = struct.Struct("<Qq")
_STEP = 4  # what the offset moves by at least
_WORD = 2**64 - 1


@dataclass(slots=True, eq=False)
class GeneratorState:
    """Seed and offset, which generators may share, and the offsets within captures."""

    seed: int
    offset: int = 0
    captures: dict[int, int] = field(default_factory=dict)  # by the id of the capture
    graphs: int = 0  # that are registered with it, up to PyTorch 2.11
    holders: list[Any] = field(default_factory=list)  # the memory that these share
    _source: torch.Generator = field(default_factory=_Generator)

    def source(self, offset: int) -> torch.Generator:
        """A generator of the CPU for the draws of one op."""
        seed = self.seed if offset == 0 else _mixed(self.seed, offset)
        return self._source.manual_seed(seed)


class SimulatedGenerator(_Generator):
    """A generator of a simulated GPU."""

    capture_on: Callable[[int], Capture | None] = staticmethod(lambda _index: None)
    """The capture of this thread's stream on a GPU, by its index."""

    def __new__(cls, device_index: int) -> Self:
        """Make one with the seed that generators have by default."""
        return super().__new__(cls)

    def __init__(self, device_index: int) -> None:
        self.device_index = device_index
        self._state = GeneratorState(_Generator.initial_seed(self))
        _simulated[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.device_index)

    @property
    def state(self) -> GeneratorState:
        """The seed and the offset, shared with others after ``graphsafe_set_state``."""
        return self._state

    def start_draw(self) -> int:
        """Move the offset past one op's draws; return it as it was."""
        # Raises RuntimeError if the op is captured, and the generator is not registered with the
        # graph.
        state, capture = self._state, self._capture()
        if capture is None:
            before = state.offset
            state.offset += _STEP
            return before
        if capture.id not in state.captures and capture.register is not None:
            capture.register(state)
        if capture.id not in state.captures:
            raise RuntimeError(
                "Attempt to increase offset for a CUDA generator not in capture mode."
            )
        before = state.captures[capture.id]
        state.captures[capture.id] += _STEP
        return before

    def manual_seed(self, seed: int) -> Self:
        if self._capture() is not None:
            if seed != self._state.seed:
                raise RuntimeError(
                    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only "
                    "if new seed is the same as the original seed."
                )
            return self
        _Generator.manual_seed(self, seed)
        self._state.seed, self._state.offset = _Generator.initial_seed(self), 0
        return self

    def seed(self) -> int:
        self.manual_seed(_Generator.seed(self))
        return self._state.seed

    def initial_seed(self) -> int:
        return self._state.seed

    def get_offset(self) -> int:
        self._refuse_capture("get_offset")
        return self._state.offset

    @without_frames
    def set_offset(self, offset: int) -> Self:
        self._refuse_capture("set_offset")
        if offset % _STEP:
            raise RuntimeError("offset must be a multiple of 4")
        self._state.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, in 16 bytes on the CPU."""
        state, capture = self._state, self._capture()
        offset = state.offset if capture is None else state.captures.get(capture.id, 0)
        packed = bytearray(_STATE.pack(state.seed, offset))
        return torch.frombuffer(packed, dtype=torch.uint8)

    @without_frames
    def set_state(self, new_state: torch.Tensor) -> Self:
        if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != _STATE.size:
            raise RuntimeError("RNG state is wrong size")
        seed, offset = _STATE.unpack(bytes(new_state.tolist()))
        capture = self._capture()
        if capture is None:
            self._state.seed, self._state.offset = seed, offset
        else:
            self.manual_seed(seed)
            self._state.captures[capture.id] = offset
        return self

    def __reduce__(self) -> Any:
        state = (self.initial_seed(), self.get_offset(), self.get_state())
        return torch.Generator, (self.device,), state

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        self.set_state(state[2])

    def clone_state(self) -> SimulatedGenerator:
        clone = SimulatedGenerator(self.device_index)
        clone._state = GeneratorState(self._state.seed, self._state.offset)
        return clone

    def graphsafe_get_state(self) -> SimulatedGenerator:
        """Another generator of one and the same state."""
        twin = SimulatedGenerator(self.device_index)
        twin._state = self._state
        return twin

    def graphsafe_set_state(self, state: torch.Generator) -> Self:
        """Share the state of another generator."""
        if not isinstance(state, SimulatedGenerator):
            raise TypeError(f"a generator of a GPU is needed, not one of {state.device}")
        self._state = state._state
        return self

    def _capture(self) -> Capture | None:
        """The capture of the stream that this thread uses on the generator's GPU."""
        return self.capture_on(self.device_index)

    def _refuse_capture(self, method: str) -> None:
        if self._capture() is not None:
            raise RuntimeError(
                f"Cannot call CUDAGeneratorImpl::{method} during CUDA graph capture. If you need "
                "this call to be captured, please file an issue. Current cudaStreamCaptureStatus: "
                "cudaStreamCaptureStatusActive"
            )


_simulated: weakref.WeakValueDictionary[int, SimulatedGenerator] = weakref.WeakValueDictionary()


def simulated_generator(generator: torch.Generator) -> SimulatedGenerator | None:
    """The simulated generator that C++ passed on as its base class; None if it is the CPU's."""
    return _simulated.get(generator._cdata)  # type: ignore[attr-defined]


def _mixed(seed: int, offset: int) -> int:
    """A seed for each pair of both; the CPU's generator takes its 32 low bits."""
    mixed = (seed ^ (offset * 0x9E3779B97F4A7C15)) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return mixed ^ (mixed >> 31)
