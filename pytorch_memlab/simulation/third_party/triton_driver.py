"""Triton's driver: what Triton asks of CUDA, answered by the simulated GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from ...errors import UnsupportedCUDACallError
from ..machine.machine import Machine

_REGISTERS_OF_A_BLOCK = 65_536
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": of all since 5.0,
but 6.2."""

_SYSTEM_SHARED_MEMORY = 1024
"""Bytes that CUDA keeps of a multiprocessor's shared memory per block, from capability 8.0 on."""

_BENCHMARK_CACHE = 256 * 1024**2
"""Bytes that ``triton.testing.do_bench`` writes between runs, so that the L2 cache is cold."""


class SimulatedDriver:
    """Stands for ``triton.runtime.driver.active``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.utils = _Utilities(machine)

    @staticmethod
    def is_active() -> bool:
        """True if there is a GPU."""
        return True

    def get_current_target(self) -> Any:
        """The target of compilation: the capability of the current GPU."""
        target = import_module("triton.backends.compiler").GPUTarget
        major, minor = self.get_device_capability()
        return target("cuda", 10 * major + minor, 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """Compute capability of a GPU, the current one if None."""
        model = self._machine.gpu(self.get_current_device() if device is None else device).model
        return model.major, model.minor

    def get_current_device(self) -> int:
        """Index of the current GPU."""
        return self._machine.thread.device

    def set_current_device(self, device: int) -> None:
        """Choose the current GPU."""
        self._machine.thread.device = self._machine.gpu(device).index

    def get_current_stream(self, device: int | None = None) -> int:
        """Handle of the current stream of a GPU, the current one if None."""
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream

    def get_active_torch_device(self) -> torch.device:
        """The current GPU, as PyTorch names it."""
        return self._machine.gpu(self.get_current_device()).device

    def get_device_interface(self) -> Any:
        """PyTorch's module for such devices."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """The function that measures kernels."""
        return import_module("triton.testing").do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """The buffer that is written between two runs of a benchmark."""
        return torch.empty(_BENCHMARK_CACHE // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Write it."""
        cache.zero_()

    def __getattr__(self, name: str) -> Any:
        raise _not_simulated(f"driver.active.{name}")


class _Utilities:
    """Stands for ``triton.runtime.driver.active.utils``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The properties that Triton reads; clock rates and the bus are not known."""
        model = self._machine.gpu(device).model
        shared = model.shared_memory_per_multiprocessor
        return {
            "max_shared_mem": shared - (_SYSTEM_SHARED_MEMORY if model.major >= 8 else 0),
            "max_num_regs": _REGISTERS_OF_A_BLOCK,
            "multiprocessor_count": model.multi_processor_count,
            "warpSize": 32,
        }

    def __getattr__(self, name: str) -> Any:
        raise _not_simulated(f"driver.active.utils.{name}")


def _not_simulated(name: str) -> UnsupportedCUDACallError:
    return UnsupportedCUDACallError(
        f"triton.runtime.{name} is not covered by the simulated GPU, which compiles no kernels; "
        "run this part on a real one"
    )
