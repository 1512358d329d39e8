"""Triton's kernels on simulated GPUs.

A launch takes no memory of PyTorch's: it reads and writes what the program made. In a run without
values it does nothing else than a launch checks; with computing Triton's own interpreter runs it.
What a kernel needs of global scratch memory, only Triton's compiler can tell: such lines are
marked as lower bounds.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from ..._common.patching.patches import Patches
from ...errors import UnmodelledOpError, UnsupportedCUDACallError
from ..dispatch import captured_ops
from ..machine.device_properties import DeviceProperties
from ..machine.machine import Machine
from . import triton_interpreter, triton_source

_CAPABILITY_WITH_TMA = 9
"""Major compute capability from which kernels keep tensor descriptors in global scratch memory."""

_BENCHMARK_CACHE = 256 * 1024**2
"""Bytes that ``triton.testing.do_bench`` writes between runs, so that the L2 cache is cold."""


def install(machine: Machine, patches: Patches, _package: ModuleType) -> None:
    """Let Triton find the simulated GPUs, and launch on them, until undone."""
    jit = import_module("triton.runtime.jit")
    autotuner = import_module("triton.runtime.autotuner")
    interpreter = import_module("triton.runtime.interpreter")
    config = import_module("triton.runtime.driver").driver
    patches.set(config, "_active" if "_active" in vars(config) else "active", _Driver(machine))
    launches = _Launches(machine, patches)
    patches.around(jit.JITFunction, "run")(launches.launch)
    if hasattr(interpreter.InterpretedFunction, "run"):  # in Triton 3.0 each object has its own
        patches.around(interpreter.InterpretedFunction, "run")(launches.launch)
    patches.around(autotuner.Autotuner, "run")(launches.tune)
    detections = import_module("torch.utils._triton")
    for name, detect in vars(detections).copy().items():
        if isinstance(detect, functools._lru_cache_wrapper):  # it remembers what the GPU can do
            patches.set(detections, name, detect.__wrapped__)


class _Launches:
    """Launches kernels on one machine."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self._machine = machine
        self._patches = patches
        self._thread = _ThreadState()
        self._tuned: dict[int, Any] = {}

    def launch(
        self, _run: Any, kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any
    ) -> Any:
        arguments = triton_source.arguments_of(kernel, args, kwargs)
        if warmup:
            return _NotCompiled(kernel.__name__)
        if self._machine.thread.sees_host_addresses:  # a compiled graph's values; it has no marks
            triton_interpreter.compute(kernel, arguments, _blocks(grid, arguments))
            return _NotCompiled(kernel.__name__)
        tensors = {name: tensor for name, value in arguments.items() for tensor in _tensors(value)}
        self._check_places(arguments)
        blocks = _blocks(grid, arguments)
        self._note_scratch(kernel)
        values = self._machine.values
        if values is None:
            if not self._thread.is_tuning:
                run = partial(self._compute, kernel, blocks)
                captured_ops.run_kernel(self._machine, self._machine.thread.device, run, arguments)
        else:
            for name in triton_source.written(kernel.fn) & tensors.keys():
                for tensor in _tensors(arguments[name]):
                    values.forget_values(tensor)
        return _NotCompiled(kernel.__name__)

    def _compute(self, kernel: Any, blocks: Any, arguments: dict[str, Any]) -> None:
        with self._machine.thread.host_addresses():
            triton_interpreter.compute(kernel, arguments, blocks)

    def _check_places(self, arguments: dict[str, Any]) -> None:
        """Refuse CPU tensors, in Triton's words."""
        machine = self._machine
        for position, value in enumerate(arguments.values()):
            for tensor in _tensors(value):
                is_reached = machine.allocations.find(tensor) or machine.is_pinned(tensor)
                if not is_reached and tensor.numel():
                    raise ValueError(
                        f"Pointer argument (at {position}) cannot be accessed from Triton "
                        "(cpu tensor?)"
                    )

    def _note_scratch(self, kernel: Any) -> None:
        machine = self._machine
        gpu = machine.current_gpu()
        if gpu.model.major < _CAPABILITY_WITH_TMA or not triton_source.makes_descriptors(kernel.fn):
            return
        name = f"triton.{kernel.__name__}.default"
        if machine.strict:
            raise UnmodelledOpError(
                f"the Triton kernel {kernel.__name__} makes tensor descriptors in global scratch "
                "memory, of a size that only Triton's compiler knows; without strict=True "
                "(--strict) it is not counted"
            )
        machine.approximations[gpu.index].count_unmodelled(name, None)

    def tune(self, run: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        """Tune without time, and launch: the method ``run`` of autotuners."""
        # Of equally fast configurations Triton takes the first. A GPU counts as holding what it
        # would hold while it measures: the copies of arguments that are restored, and the buffer
        # that flushes the cache.
        if id(autotuner) not in self._tuned:
            self._tuned[id(autotuner)] = autotuner
            self._patches.set(autotuner, "cache", {})
            self._patches.set(autotuner, "cache_results", False)
            self._patches.set(autotuner, "do_bench", self._bench)
        return run(autotuner, *args, **kwargs)

    def _bench(self, call: Callable[[], Any], **options: Any) -> list[float]:
        """Run once before, and once with the buffer; all configurations are equally fast."""
        # A compiled graph's values are computed with the first one, and without the memory.
        fastest = [0.0] * len(options.get("quantiles") or (0.5,))
        if self._machine.thread.sees_host_addresses:
            return fastest
        driver = import_module("triton.runtime.driver").driver.active
        self._thread.is_tuning = True
        try:
            call()
            cache = driver.get_empty_cache_for_benchmark()
            call()
            del cache
        finally:
            self._thread.is_tuning = False
        return fastest


class _ThreadState(threading.local):
    is_tuning = False  # whether it tries configurations of a kernel


class _Driver:
    """Stands for ``triton.runtime.driver.active``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.utils = _Utilities(machine)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        target = import_module("triton.backends.compiler").GPUTarget
        major, minor = self.get_device_capability()
        return target("cuda", 10 * major + minor, 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        model = self._machine.gpu(self.get_current_device() if device is None else device).model
        return model.major, model.minor

    def get_current_device(self) -> int:
        return self._machine.thread.device

    def set_current_device(self, device: int) -> None:
        self._machine.thread.device = self._machine.gpu(device).index

    def get_current_stream(self, device: int | None = None) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_active_torch_device(self) -> torch.device:
        return self._machine.gpu(self.get_current_device()).device

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        return import_module("triton.testing").do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """The buffer that is written between two runs of a benchmark."""
        return torch.empty(_BENCHMARK_CACHE // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def __getattr__(self, name: str) -> Any:
        raise _not_simulated(f"driver.active.{name}")


class _Utilities:
    """Stands for ``triton.runtime.driver.active.utils``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Those that Triton reads; clock rates and the bus are not known."""
        properties = DeviceProperties.of(self._machine.gpu(device))
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
        }

    def __getattr__(self, name: str) -> Any:
        raise _not_simulated(f"driver.active.utils.{name}")


def _not_simulated(name: str) -> UnsupportedCUDACallError:
    return UnsupportedCUDACallError(
        f"triton.runtime.{name} is not covered by the simulated GPU, which compiles no kernels; "
        "run this part on a real one"
    )


class _NotCompiled:
    """The result of a launch: a kernel that no compiler made."""

    def __init__(self, name: str) -> None:
        self._message = f"the simulated GPU does not compile the Triton kernel {name}: "

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedCUDACallError(
            f"{self._message}it has no {name!r}; run this part on a real one"
        )

    def __getitem__(self, grid: Any) -> Any:
        raise UnsupportedCUDACallError(
            f"{self._message}launch the function itself, or run this part on a real one"
        )


def _blocks(grid: Any, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Blocks along each dimension of a launch."""
    blocks: tuple[int, ...] = grid(arguments) if callable(grid) else grid
    return blocks


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of one argument: a tensor, one reinterpreted, a descriptor, or tuples of them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    base = getattr(value, "base", None)
    return _tensors(base) if isinstance(base, torch.Tensor) else []
