"""``torch.Generator("cuda")``: a seed and an offset, as CUDA's is, that draws on the CPU.

CUDA's generator (``aten/src/ATen/cuda/CUDAGeneratorImpl.cpp``) counts what was drawn in an offset,
and a draw is a function of the seed and the offset. So is one here, though of other values: the
CPU's generator starts from both for each op.
"""

from __future__ import annotations

import struct
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from typing_extensions import Self

_Generator = torch._C.Generator
_STATE = struct.Struct("<Qq")
_STEP = 4  # what the offset moves by at least
_WORD = 2**64 - 1


@dataclass(slots=True)
class _State:
    seed: int
    offset: int = 0


class SimulatedGenerator(_Generator):
    """A generator of a simulated GPU."""

    def __new__(cls, device_index: int) -> Self:
        """Make one with the seed that generators have by default."""
        return super().__new__(cls)

    def __init__(self, device_index: int) -> None:
        super().__init__()
        self.device_index = device_index
        self._state = _State(_Generator.initial_seed(self))
        self._source = _Generator()
        _simulated[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.device_index)

    def start_draw(self) -> torch.Generator:
        """Move the offset past one op's draws."""
        state = self._state
        seed = state.seed if state.offset == 0 else _mixed(state.seed, state.offset)
        state.offset += _STEP
        return self._source.manual_seed(seed)

    def manual_seed(self, seed: int) -> Self:
        _Generator.manual_seed(self, seed)
        self._state.seed, self._state.offset = _Generator.initial_seed(self), 0
        return self

    def seed(self) -> int:
        self.manual_seed(_Generator.seed(self))
        return self._state.seed

    def initial_seed(self) -> int:
        return self._state.seed

    def get_offset(self) -> int:
        return self._state.offset

    def set_offset(self, offset: int) -> Self:
        if offset % _STEP:
            raise RuntimeError("offset must be a multiple of 4")
        self._state.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, in 16 bytes on the CPU."""
        packed = bytearray(_STATE.pack(self._state.seed, self._state.offset))
        return torch.frombuffer(packed, dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Self:
        if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != _STATE.size:
            raise RuntimeError("RNG state is wrong size")
        self._state.seed, self._state.offset = _STATE.unpack(bytes(new_state.tolist()))
        return self

    def __reduce__(self) -> Any:
        state = (self.initial_seed(), self.get_offset(), self.get_state())
        return torch.Generator, (self.device,), state

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        self.set_state(state[2])

    def clone_state(self) -> SimulatedGenerator:
        clone = SimulatedGenerator(self.device_index)
        clone._state = replace(self._state)
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
