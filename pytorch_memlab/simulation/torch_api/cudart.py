"""``torch.cuda.cudart()``: the part of the CUDA runtime that does something without a GPU."""

from __future__ import annotations

from typing import Any

from ..machine.machine import Machine
from ..machine.unsupported import refusal

_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}
"""The texts of ``cudaGetErrorString`` for the results that programs meet."""


class ErrorCode(int):
    """A result code of CUDA: ``torch.cuda.cudart().cudaError``."""

    success = 0

    def __repr__(self) -> str:
        """As pybind11 shows it."""
        return f"<cudaError.{'success' if self == 0 else '???'}: {int(self)}>"


class Runtime:
    """``torch.cuda.cudart()``; what is not here refuses by name."""

    cudaError = ErrorCode  # noqa: N815 - CUDA's own name

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802 - CUDA's own name
        """The text of a result code."""
        return _TEXTS.get(int(code), "unrecognized error code")

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802 - CUDA's own name
        """Free and total bytes of a GPU."""
        gpu = self._machine.gpu(device)
        return gpu.driver.free_memory(), gpu.driver.total

    def cudaProfilerStart(self) -> ErrorCode:  # noqa: N802 - CUDA's own name
        """No profiler listens."""
        return ErrorCode()

    def cudaProfilerStop(self) -> ErrorCode:  # noqa: N802 - CUDA's own name
        """No profiler listens."""
        return ErrorCode()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> ErrorCode:  # noqa: N802
        """CPU memory stays as it is."""
        return ErrorCode()

    def cudaHostUnregister(self, address: int) -> ErrorCode:  # noqa: N802 - CUDA's own name
        """CPU memory stays as it is."""
        return ErrorCode()

    def __getattr__(self, name: str) -> Any:
        return refusal(f"torch.cuda.cudart().{name}")
