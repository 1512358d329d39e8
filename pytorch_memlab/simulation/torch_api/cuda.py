"""``torch.cuda``: the calls of C++, answered by the simulated GPUs.

``torch.cuda``'s own Python runs unchanged on top, so that what it computes (flattening,
summaries, contexts) is what it is on hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._common.patches import Patches
from ..allocator.caching_allocator import CachingAllocator
from ..hardware.gpu import GPU
from ..machine.device_properties import DeviceProperties
from ..machine.machine import Machine
from ..machine.stream_ids import handle_of, id_of
from ..machine.unsupported import unsupported
from . import unsupported as unsupported_calls
from .cuda_streams import (
    CUDA_DEVICE_TYPE,
    SimulatedCUDAEvent,
    SimulatedCUDAStream,
    SimulatedEvent,
    SimulatedStream,
)
from .cudart import Runtime

_CYCLES_PER_SECOND = 1e9
"""Of a GPU's clock, for ``torch.cuda._sleep``: a round number, GPUs run at 1 to 2.6 GHz."""


def install(machine: Machine, patches: Patches) -> None:
    """Answer for CUDA, and refuse every other call of it, until undone."""
    calls = _CudaCalls(machine)
    for name, call in calls.of_c().items():
        patches.set(torch._C, name, call)
    calls.install_module(patches)
    _install_names(patches, machine)
    unsupported_calls.install(machine, patches)


class _CudaCalls:
    """The calls, bound to one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._was_initialized = False

    def of_c(self) -> dict[str, Callable[..., Any]]:
        return {
            **self._device_calls(),
            **self._stream_calls(),
            **self._memory_calls(),
            **self._host_memory_calls(),
            **self._accelerator_calls(),
            **self._machine.allocator_settings.calls(),
        }

    def _device_calls(self) -> dict[str, Callable[..., Any]]:
        machine = self._machine
        thread = machine.thread

        def exchange(device: int) -> int:
            before = thread.device
            if device >= 0:
                thread.device = machine.gpu(device).index
            return before if device >= 0 else -1

        def set_device(device: int) -> None:
            self._initialize()
            exchange(device)

        return {
            "_cuda_getDeviceCount": self._count,
            "_cuda_getDevice": lambda: thread.device,
            "_cuda_setDevice": set_device,
            "_cuda_exchangeDevice": exchange,
            "_cuda_maybeExchangeDevice": exchange,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_synchronize": self._synchronize,
            "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
            "_cuda_getArchFlags": lambda: _arch(machine.known_gpus[0].model),
            "_cuda_getCompiledVersion": lambda: 0,
            "_cuda_isCurrentStreamCapturing": lambda: False,
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

        def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
            machine.thread.device = machine.gpu(device_index).index
            machine.use_stream(device_index, stream_id)

        def sleep(cycles: int) -> None:
            machine.sleep(machine.thread.device, cycles / _CYCLES_PER_SECOND)

        return {
            "_cuda_sleep": sleep,
            "_activate_gpu_trace": machine.start_trace,
            "_cuda_getCurrentStream": current,
            "_cuda_getCurrentRawStream": (
                lambda device: handle_of(machine.current_stream(device), device)
            ),
            "_cuda_getDefaultStream": default,
            "_cuda_setStream": set_stream,
        }

    def _memory_calls(self) -> dict[str, Callable[..., Any]]:
        gpu = self._machine.gpu

        def locked(method: Callable[[CachingAllocator], Any]) -> Callable[[int], Any]:
            return lambda device: gpu(device).locked(method, gpu(device).allocator)

        def empty_cache() -> None:
            for one in self._machine.gpus:
                one.locked(one.allocator.empty_cache)

        return {
            "_cuda_memoryStats": locked(CachingAllocator.memory_stats),
            "_cuda_resetPeakMemoryStats": locked(CachingAllocator.reset_peak_stats),
            "_cuda_resetAccumulatedMemoryStats": locked(CachingAllocator.reset_accumulated_stats),
            "_cuda_emptyCache": empty_cache,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getMemoryFraction": lambda device: gpu(device).allocator.memory_fraction,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_clearCublasWorkspaces": self._machine.workspaces.clear,
            "_cuda_getCublasWorkspaceSize": self._workspace_size,
            "_cuda_setCublasWorkspaceSize": self._set_workspace_size,
            "_cuda_resetCublasWorkspaceSize": lambda: self._set_workspace_size(None),
            "_cuda_cudaCachingAllocator_raw_alloc": self._allocate,
            "_cuda_cudaCachingAllocator_raw_delete": self._free,
            "_cuda_cudaCachingAllocator_enable": _keep_caching,
        }

    def _host_memory_calls(self) -> dict[str, Callable[..., Any]]:
        pinned, memory = self._machine.pinned, self._machine.pinned_memory

        def swept(call: Callable[[], Any]) -> Callable[[], Any]:
            def after_deaths() -> Any:
                pinned.sweep()
                return call()

            return after_deaths

        return {
            "_cuda_hostMemoryStats": swept(memory.stats),
            "_cuda_resetPeakHostMemoryStats": swept(memory.reset_peaks),
            "_cuda_resetAccumulatedHostMemoryStats": swept(memory.reset_accumulated),
            "_host_emptyCache": swept(memory.empty_cache),
            "_accelerator_emptyHostCache": swept(memory.empty_cache),
        }

    def _accelerator_calls(self) -> dict[str, Callable[..., Any]]:
        machine = self._machine
        device = self._device_calls()
        memory = self._memory_calls()
        return {
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_get_accelerator": lambda check=False: torch.device("cuda"),
            "_accelerator_getDeviceIndex": device["_cuda_getDevice"],
            "_accelerator_setDeviceIndex": device["_cuda_setDevice"],
            "_accelerator_exchangeDevice": device["_cuda_exchangeDevice"],
            "_accelerator_maybeExchangeDevice": device["_cuda_maybeExchangeDevice"],
            "_accelerator_synchronizeDevice": self._synchronize,
            "_accelerator_getStream": self._current_stream,
            "_accelerator_setStream": self._set_stream,
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": memory["_cuda_emptyCache"],
            "_accelerator_getDeviceStats": memory["_cuda_memoryStats"],
            "_accelerator_resetPeakStats": memory["_cuda_resetPeakMemoryStats"],
            "_accelerator_resetAccumulatedStats": memory["_cuda_resetAccumulatedMemoryStats"],
            "_accelerator_getMemoryInfo": Runtime(machine).cudaMemGetInfo,
        }

    def _initialize(self) -> None:
        if not self._count():
            self._machine.gpu(0)  # which says that there is none
        self._was_initialized = True

    def _is_initialized(self) -> bool:
        """True if the program has used CUDA: ``DeviceMesh`` chooses a device if it has not."""
        return self._was_initialized or any(gpu.in_use() for gpu in self._machine.gpus)

    def _count(self) -> int:
        self._machine.see_environment()
        return len(self._machine.gpus)

    def _synchronize(self, device: int | None = None) -> None:
        gpu = self._machine.current_gpu() if device is None else self._machine.gpu(device)
        gpu.locked(gpu.allocator.synchronize)
        self._machine.traced("DeviceSynchronization")

    def _workspace_size(self) -> int:
        machine = self._machine
        return machine.workspaces.size(machine.current_gpu())

    def _set_workspace_size(self, size: int | None) -> None:
        if size is not None and size < 0:
            raise ValueError(f"the size of a workspace must be 0 or more bytes, not {size}")
        self._machine.workspaces.chosen_size = size

    def _allocate(self, size: int, stream: int) -> int:
        gpu = self._machine.current_gpu()
        allocation = gpu.allocate(size, id_of(stream))
        self._machine.tell_of_data(allocation)
        return allocation.address

    def _free(self, address: int) -> None:
        for gpu in self._machine.gpus:
            if gpu.owns(address):
                gpu.locked(gpu.allocator.free, address)
                return
        raise RuntimeError(f"invalid device pointer: {address:#x} is on no simulated GPU")

    def _set_fraction(self, fraction: float, device: int) -> None:
        gpu = self._machine.gpu(device)
        gpu.locked(gpu.allocator.set_memory_fraction, fraction)

    def _current_stream(self, device: int) -> SimulatedStream:
        stream = self._machine.current_stream(self._machine.gpu(device).index)
        return SimulatedStream(stream_id=stream, device_index=device)

    def _set_stream(self, stream: SimulatedStream) -> None:
        self._machine.thread.device = stream.device_index
        self._machine.use_stream(stream.device_index, stream.stream_id)

    def install_module(self, patches: Patches) -> None:
        machine = self._machine
        calls = self.of_c()
        runtime = Runtime(machine)
        names: dict[str, Any] = {
            "_initialized": True,
            "_lazy_init": self._initialize,
            "init": self._initialize,
            "is_initialized": self._is_initialized,
            "_lazy_call": lambda callable, **_: callable(),
            "is_available": lambda: self._count() > 0,
            "_is_in_bad_fork": lambda: False,
            "device_count": calls["_cuda_getDeviceCount"],
            "_exchange_device": calls["_cuda_exchangeDevice"],
            "_maybe_exchange_device": calls["_cuda_maybeExchangeDevice"],
            "_get_device_properties": lambda device: DeviceProperties.of(machine.gpu(device)),
            "cudart": lambda: runtime,
            "_cudart": runtime,
            "default_generators": tuple(machine.generators),
            "Stream": SimulatedCUDAStream,
            "Event": SimulatedCUDAEvent,
            "has_magma": True,
            "get_arch_list": lambda: [_arch(machine.known_gpus[0].model)],
        }
        for name, value in names.items():
            patches.set(torch.cuda, name, value)
        for name in ("_lazy_init", "_lazy_call", "device_count", "is_initialized"):
            patches.set(torch.cuda.random, name, names[name])
        for name in ("_lazy_init", "is_initialized"):
            patches.set(torch.cuda.memory, name, names[name])
        patches.set(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
        patches.set(torch, "Stream", SimulatedStream)
        patches.set(torch, "Event", SimulatedEvent)
        patches.set(torch.cuda.streams, "Stream", SimulatedCUDAStream)
        patches.set(torch.cuda.streams, "Event", SimulatedCUDAEvent)
        for kind in (SimulatedStream, SimulatedEvent):
            patches.set(kind, "machine", machine)


def _keep_caching(value: bool) -> None:
    if not value:
        raise unsupported("torch.cuda.caching_allocator_enable(False)")


class _NoRanges:
    """NVTX without a profiler that listens: every range is of no effect."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_args: 0


def _install_names(patches: Patches, machine: Machine) -> None:
    patches.set(torch.cuda.nvtx, "_nvtx", _NoRanges())
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", "13.0")


def _arch(model: GPU) -> str:
    return f"sm_{model.major}{model.minor}"
