"""``torch.cuda``: the calls of C++, answered by the simulated GPUs.

``torch.cuda``'s own Python runs unchanged on top, so that what it computes (flattening,
summaries, contexts) is what it is on hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..._common.frames.traceback_frames import without_frames
from ..._common.patching.patches import Patches
from ..allocator.caching_allocator import CachingAllocator
from ..machine.device_properties import DeviceProperties
from ..machine.machine import Machine
from ..machine.refused_calls import refusal, unsupported
from ..machine.streams import handle_of, id_of
from ..ops.matmul import cublaslt
from . import cuda_graphs, unsupported as unsupported_calls
from .cuda_streams import (
    CUDA_DEVICE_TYPE,
    SimulatedCUDAEvent,
    SimulatedCUDAStream,
    SimulatedEvent,
    SimulatedStream,
)

_CYCLES_PER_SECOND = 1e9
"""Of a GPU's clock, for ``torch.cuda._sleep``: a round number, GPUs run at 1 to 2.6 GHz."""

_ERROR_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}
"""The texts of ``cudaGetErrorString`` for the results that programs meet."""


def install(machine: Machine, patches: Patches) -> None:
    """Answer for CUDA, and refuse every other call of it, until undone."""
    runtime = _Runtime(machine)
    calls = _CudaCalls(machine, runtime)
    of_c, of_cuda = calls.of_c(), calls.of_cuda()
    streams = {"Stream": SimulatedStream, "Event": SimulatedEvent}
    cuda_streams = {"Stream": SimulatedCUDAStream, "Event": SimulatedCUDAEvent}
    patches.set_all(torch._C, of_c)
    patches.set_all(torch.cuda, {**of_cuda, **cuda_streams, "_cudart": runtime})
    for module in (torch.cuda.random, torch.cuda.memory):
        held = of_cuda.keys() & vars(module).keys()
        patches.set_all(module, {name: of_cuda[name] for name in held})
    cuda_graphs.install(machine, patches)
    patches.set_all(torch, streams)
    patches.set_all(torch.cuda.streams, cuda_streams)
    for kind in streams.values():
        patches.set(kind, "machine", machine)
    patches.set(torch.cuda.nvtx, "_nvtx", _NoRanges())
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", "13.0")
    unsupported_calls.install(machine, patches)


class _CudaCalls:
    """The calls, bound to one machine."""

    def __init__(self, machine: Machine, runtime: _Runtime) -> None:
        self._machine = machine
        self._runtime = runtime
        self._was_initialized = False

    def of_c(self) -> dict[str, Callable[..., Any]]:
        device, memory = self._device_calls(), self._memory_calls()
        return {
            **device,
            **self._stream_calls(),
            **memory,
            **self._host_memory_calls(),
            **self._accelerator_calls(device | memory),
            **self._machine.allocator_settings.calls(),
        }

    def of_cuda(self) -> dict[str, Any]:
        machine = self._machine
        return {
            "_initialized": True,
            "_lazy_init": self._initialize,
            "init": self._initialize,
            "is_initialized": self._is_initialized,
            "_lazy_call": lambda callable, **_: callable(),
            "is_available": lambda: self._count() > 0,
            "_is_in_bad_fork": lambda: False,
            "device_count": self._count,
            "_exchange_device": self._exchange,
            "_maybe_exchange_device": self._exchange,
            "_get_device_properties": lambda device: DeviceProperties.of(machine.gpu(device)),
            "cudart": lambda: self._runtime,
            "default_generators": tuple(machine.generators),
            "has_magma": True,
            "get_arch_list": lambda: [self._arch()],
        }

    def _device_calls(self) -> dict[str, Callable[..., Any]]:
        machine = self._machine

        def set_device(device: int) -> None:
            self._initialize()
            self._exchange(device)

        return {
            "_cuda_getDeviceCount": self._count,
            "_cuda_getDevice": lambda: machine.thread.device,
            "_cuda_setDevice": set_device,
            "_cuda_exchangeDevice": self._exchange,
            "_cuda_maybeExchangeDevice": self._exchange,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_synchronize": self._synchronize,
            "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
            "_cuda_getArchFlags": self._arch,
            "_cuda_getCompiledVersion": lambda: 0,
            "_cuda_getDriverVersion": _driver_version,
            "_cuda_hasPrimaryContext": lambda device: machine.gpu(device).in_use(),
            "_cuda_ipc_collect": lambda: None,
            "_cuda_set_sync_debug_mode": lambda mode: None,
            "_cuda_get_sync_debug_mode": lambda: 0,
        }

    def _stream_calls(self) -> dict[str, Callable[..., Any]]:
        machine = self._machine

        def current(device: int) -> tuple[int, int, int]:
            return machine.current_stream(machine.gpu(device).index), device, CUDA_DEVICE_TYPE

        def default(device: int) -> tuple[int, int, int]:
            return 0, machine.gpu(device).index, CUDA_DEVICE_TYPE

        def sleep(cycles: int) -> None:
            machine.sleep(machine.thread.device, cycles / _CYCLES_PER_SECOND)

        def raw(device: int) -> int:
            return handle_of(machine.current_stream(device), device)

        return {
            "_cuda_sleep": sleep,
            "_activate_gpu_trace": machine.start_trace,
            "_cuda_getCurrentStream": current,
            "_cuda_getCurrentRawStream": raw,
            "_cuda_getDefaultStream": default,
            "_cuda_setStream": self._set_stream,
        }

    def _set_stream(self, stream_id: int, device_index: int, device_type: int = 1) -> None:
        self._machine.thread.device = self._machine.gpu(device_index).index
        self._machine.use_stream(device_index, stream_id)

    def _memory_calls(self) -> dict[str, Callable[..., Any]]:
        machine = self._machine
        gpu = machine.gpu

        def call(method: Callable[..., Any], device: int, *args: Any) -> Any:
            return gpu(device).locked(method, gpu(device).allocator, *args)

        def empty_cache() -> None:
            for index in range(len(machine.gpus)):
                call(CachingAllocator.empty_cache, index)

        def set_workspace_size(size: int | None) -> None:
            if size is not None and size < 0:
                raise ValueError(f"the size of a workspace must be 0 or more bytes, not {size}")
            machine.workspaces.chosen_size = size

        def keep_caching(value: bool) -> None:
            if not value:
                raise unsupported("torch.cuda.caching_allocator_enable(False)")

        return {
            "_cuda_memoryStats": partial(call, CachingAllocator.memory_stats),
            "_cuda_resetPeakMemoryStats": partial(call, CachingAllocator.reset_peak_stats),
            "_cuda_resetAccumulatedMemoryStats": partial(
                call, CachingAllocator.reset_accumulated_stats
            ),
            "_cuda_emptyCache": empty_cache,
            "_cuda_setMemoryFraction": lambda fraction, device: call(
                CachingAllocator.set_memory_fraction, device, fraction
            ),
            "_cuda_getMemoryFraction": lambda device: gpu(device).allocator.memory_fraction,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_clearCublasWorkspaces": machine.workspaces.clear,
            "_cuda_getCublasWorkspaceSize": lambda: machine.workspaces.size(machine.current_gpu()),
            "_cuda_setCublasWorkspaceSize": set_workspace_size,
            "_cuda_resetCublasWorkspaceSize": lambda: set_workspace_size(None),
            "_cuda_getCublasLtWorkspaceSize": lambda: cublaslt.workspace_size(
                machine.workspaces, machine.current_gpu()
            ),
            "_cuda_setCublasLtWorkspaceSize": partial(
                setattr, machine.workspaces, "chosen_lt_size"
            ),
            "_cuda_resetCublasLtWorkspaceSize": partial(
                setattr, machine.workspaces, "chosen_lt_size", None
            ),
            "_cuda_cudaCachingAllocator_raw_alloc": self._allocate,
            "_cuda_cudaCachingAllocator_raw_delete": self._free,
            "_cuda_cudaCachingAllocator_enable": keep_caching,
        }

    def _host_memory_calls(self) -> dict[str, Callable[..., Any]]:
        pinned, memory = self._machine.pinned, self._machine.pinned_memory

        def after_deaths(call: Callable[[], Any]) -> Any:
            pinned.sweep()
            return call()

        calls = {
            "_cuda_hostMemoryStats": memory.stats,
            "_cuda_resetPeakHostMemoryStats": memory.reset_peaks,
            "_cuda_resetAccumulatedHostMemoryStats": memory.reset_accumulated,
            "_host_emptyCache": memory.empty_cache,
            "_accelerator_emptyHostCache": memory.empty_cache,
        }
        return {name: partial(after_deaths, call) for name, call in calls.items()}

    def _accelerator_calls(self, cuda: dict[str, Callable[..., Any]]) -> dict[str, Any]:
        machine = self._machine

        def current_stream(device: int) -> SimulatedStream:
            stream = machine.current_stream(machine.gpu(device).index)
            return SimulatedStream(stream_id=stream, device_index=device)

        return {
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_get_accelerator": lambda check=False: torch.device("cuda"),
            "_accelerator_getDeviceIndex": cuda["_cuda_getDevice"],
            "_accelerator_setDeviceIndex": cuda["_cuda_setDevice"],
            "_accelerator_exchangeDevice": self._exchange,
            "_accelerator_maybeExchangeDevice": self._exchange,
            "_accelerator_synchronizeDevice": self._synchronize,
            "_accelerator_getStream": current_stream,
            "_accelerator_setStream": lambda stream: self._set_stream(
                stream.stream_id, stream.device_index
            ),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": cuda["_cuda_emptyCache"],
            "_accelerator_getDeviceStats": cuda["_cuda_memoryStats"],
            "_accelerator_resetPeakStats": cuda["_cuda_resetPeakMemoryStats"],
            "_accelerator_resetAccumulatedStats": cuda["_cuda_resetAccumulatedMemoryStats"],
            "_accelerator_getMemoryInfo": self._runtime.cudaMemGetInfo,
        }

    def _initialize(self) -> None:
        if not self._count():
            self._machine.gpu(0)  # which says that there is none
        self._was_initialized = True

    def _is_initialized(self) -> bool:
        """True if the program has used CUDA: ``DeviceMesh`` chooses a device if it has not."""
        return self._was_initialized or any(gpu.ever_held_data for gpu in self._machine.gpus)

    def _count(self) -> int:
        self._machine.see_environment()
        return len(self._machine.gpus)

    def _exchange(self, device: int) -> int:
        if device < 0:
            return -1
        thread = self._machine.thread
        before, thread.device = thread.device, self._machine.gpu(device).index
        return before

    def _synchronize(self, device: int | None = None) -> None:
        gpu = self._machine.current_gpu() if device is None else self._machine.gpu(device)
        self._machine.captures.refuse_wait(gpu.index)
        gpu.locked(gpu.allocator.work.finish)
        self._machine.traced("DeviceSynchronization")

    def _arch(self) -> str:
        model = self._machine.known_gpus[0].model
        return f"sm_{model.major}{model.minor}"

    def _allocate(self, size: int, stream: int) -> int:
        return self._machine.current_gpu().allocate(size, id_of(stream), is_data=True).address

    def _free(self, address: int) -> None:
        for gpu in self._machine.gpus:
            if gpu.owns(address):
                gpu.locked(gpu.allocator.free, address)
                return
        raise RuntimeError(f"invalid device pointer: {address:#x} is on no simulated GPU")


def _driver_version() -> int:
    """The version of CUDA that the driver is for, as CUDA gives it: that of PyTorch."""
    major, minor = map(int, str(torch.version.cuda).split(".")[:2])
    return 1000 * major + 10 * minor


class _ErrorCode(int):
    """A result code of CUDA: ``torch.cuda.cudart().cudaError``."""

    success = 0

    def __repr__(self) -> str:
        return f"<cudaError.{'success' if self == 0 else '???'}: {int(self)}>"


class _Runtime:
    """``torch.cuda.cudart()``; what is not here refuses by name."""

    cudaError = _ErrorCode  # noqa: N815 - CUDA's own name

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802 - CUDA's own name
        return _ERROR_TEXTS.get(int(code), "unrecognized error code")

    @without_frames
    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802 - CUDA's own name
        gpu = self._machine.gpu(device)
        return gpu.driver.free_memory(), gpu.driver.total

    def cudaProfilerStart(self) -> _ErrorCode:  # noqa: N802 - CUDA's own name
        """No profiler listens."""
        return _ErrorCode()

    cudaProfilerStop = cudaProfilerStart  # noqa: N815 - CUDA's own name

    def cudaHostRegister(  # noqa: N802 - CUDA's own name
        self, address: int, nbytes: int, _flags: int
    ) -> _ErrorCode:
        return _ErrorCode(self._machine.registered_memory.register(address, nbytes))

    def cudaHostUnregister(self, address: int) -> _ErrorCode:  # noqa: N802 - CUDA's own name
        return _ErrorCode(self._machine.registered_memory.unregister(address))

    def __getattr__(self, name: str) -> Any:
        return refusal(f"torch.cuda.cudart().{name}")


class _NoRanges:
    """NVTX without a profiler that listens: every range is of no effect."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_args: 0
