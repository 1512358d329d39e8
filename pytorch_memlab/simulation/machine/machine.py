"""The simulated GPUs, the storages that live on them, and what each thread chose."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch._subclasses import FakeTensor

from ..._common.frames.hidden_calls import CAN_HIDE
from ..._common.frames.traceback_frames import passes_on
from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, held, uninterrupted
from ..._common.text.prose_size import prose_size
from ..._common.torch.storages import StorageTable, host_address, storages_of
from ..allocator.pinned_memory import PinnedMemory
from ..hardware.gpu import GPU
from .approximations import OpApproximations, OpCount
from .captures import Capture, Captures, pool_ids
from .cublas_workspaces import Workspaces
from .cuda_generator import SimulatedGenerator
from .device_properties import VISIBLE_DEVICES, visible_count
from .kept_files import KeptFiles
from .op_arguments import Args, Kwargs
from .overwritten import Overwritten
from .pool_memory import PoolMemory
from .registered_memory import RegisteredMemory
from .runtime_settings import RuntimeSettings
from .simulated_gpu import Allocation, MemoryOverhead, SimulatedGPU
from .streams import StreamChanges, StreamIds, all_ids, handle_of
from .tensor_values import DataDependentRead, TensorValues
from .torch_release import RELEASE
from .trace_callbacks import TraceCallbacks

Strictness = bool | Literal["estimates"]
"""True: memory of unknown size and assumed values are errors; "estimates": estimates are too."""


_set_storage: Any = torch.ops.aten.set_.source_Storage_storage_offset

Execute = Callable[[Any, Any, tuple[Any, ...], dict[str, Any], bool], Any]
"""Runs an op: takes the op, the function that computes it, arguments and keyword arguments, and
whether it runs on a GPU."""


def compute(op: Any, run: Any, args: Args, kwargs: Kwargs, on_gpu: bool) -> Any:
    """Run an op with arithmetic: an ``Execute``."""
    return run(*args, **kwargs)


class ThreadState(threading.local):
    """The state of one thread: its device, its stream on each device, the call it is in."""

    def __init__(self) -> None:
        self.device = 0
        self.streams = StreamChanges()
        self.before_streams: list[tuple[int, int, int]] = []
        self.call: tuple[Args, Kwargs] | None = None
        self.output_device: torch.device | None = None
        # where ops ran last, which the nodes of a backward pass do that follow; None: on the CPU
        self.last_gpu: SimulatedGPU | None = None
        self.zero_gradients: deque[SimulatedGPU | None] = deque()
        """Where the next zeros of the node that runs are made, if that differs among them."""
        self.sees_host_addresses = False
        self.computes = True
        self.describes_blocks = True

    @contextmanager
    def _override(self, name: str, value: Any) -> Iterator[None]:
        outer = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, outer)

    def device_override(self, device: torch.device | None) -> AbstractContextManager[None]:
        """Within: every op makes its outputs on this device; None: where its arguments are."""
        return self._override("output_device", device)

    def host_addresses(self) -> AbstractContextManager[None]:
        """Within: ``data_ptr()`` tells where values are in this process, for what reads them."""
        # Otherwise it is an address of the simulated GPU, as in snapshots, and nothing is there.
        return self._override("sees_host_addresses", True)

    def without_arithmetic(self) -> AbstractContextManager[None]:
        """Within: ops return tensors whose values mean nothing."""
        return self._override("computes", False)

    def without_descriptions(self) -> AbstractContextManager[None]:
        """Within: snapshots lack the categories of blocks, which take a scan of all objects."""
        return self._override("describes_blocks", False)

    def call_context(self, args: Args, kwargs: Kwargs) -> AbstractContextManager[None]:
        """Within: ops belong to a call of the program with these arguments."""
        return self._override("call", (args, kwargs))


class Machine:
    """All simulated GPUs, and the label of each storage that lives on one."""

    def __init__(
        self, model: GPU, count: int, values: TensorValues | None, taken: MemoryOverhead
    ) -> None:
        self._all_gpus = [SimulatedGPU(index, model, taken) for index in range(count)]
        self.gpus = self._all_gpus[: visible_count(self._all_gpus)]
        self.known_gpus = self.gpus.copy()
        """Those that the program sees or saw: it may hide them until it uses one."""
        self.allocator_settings = RuntimeSettings(self._all_gpus)
        self.generators = [SimulatedGenerator(index) for index in range(count)]
        for generator in self.generators:
            generator.manual_seed(torch.initial_seed())  # a seed given before holds for GPUs too
        self.allocations: StorageTable[Allocation] = StorageTable(self._release, waits=True)
        self.captures = Captures(self.allocations.sweep_at_once, self.allocations.sweep_later)
        self.new_pool_id = pool_ids()
        self.pool_memory = [PoolMemory(gpu) for gpu in self._all_gpus]
        for gpu in self._all_gpus:
            if RELEASE >= (2, 13):  # ``is_capture_context`` asks the stream
                in_capture = partial(self._current_stream_is_captured, gpu.index)
                gpu.allocator.stream_captures = in_capture
            gpu.driver.before_call = partial(self._refuse_unsafe_call, gpu.index)
            gpu.sweep, gpu.deaths = self.allocations.sweep, self.allocations.deaths
            gpu.before_first_use = self.see_environment
        self.pinned_memory = PinnedMemory()
        self.pinned: StorageTable[int] = StorageTable(self.pinned_memory.give_back)
        self.registered_memory = RegisteredMemory()
        self.thread = ThreadState()
        self.workspaces = Workspaces()
        self.approximations = [OpApproximations() for _ in self._all_gpus]
        self.strict: Strictness = False
        self.values = values
        self.waits_are_seen = False
        self.calls_are_hidden = False
        """``torch.profiler`` records calls of Python functions: it does not see those of ops."""
        self._trace: TraceCallbacks | None = None
        self.op_observers: tuple[Callable[[Any], object], ...] = ()
        """Called with every op before it runs."""
        self.gradient_observers: tuple[Callable[[torch.Tensor], object], ...] = ()
        """Called with a gradient that the program replaces or drops by ``tensor.grad = ...``."""
        self.recorder: Any = None  # follows the blocks of all GPUs, once it was asked for
        self._stream_ids = [StreamIds() for _ in self._all_gpus]
        self.replacements: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Functions of torch and what stands for each, for programs that hold the original."""
        self.execute: Execute = compute  # runs ops on CPU tensors
        self.overwritten = Overwritten()
        self.watches_overwritten = False  # whether `execute` looks at what ops use
        self.kept_files: KeptFiles | None = None
        """The files that a dry run does not write; None where files are written."""

    def __repr__(self) -> str:
        gpus = [
            f"cuda:{gpu.index} ({gpu.model.name}, {prose_size(gpu.active_bytes())} in use)"
            for gpu in self._all_gpus
        ]
        return f"<{type(self).__name__} with {', '.join(gpus)}>"

    @property
    def unmodelled(self) -> dict[str, OpCount]:
        """Ops that ran without a memory model, with the bytes of their outputs.

        By their names with namespace and overload, over all GPUs.
        """
        total: dict[str, OpCount] = {}
        for approximations in self.approximations:
            for op, count in approximations.unmodelled.copy().items():
                total[op] = total.get(op, OpCount()) + count
        return total

    @property
    def is_dry_run(self) -> bool:
        """True if ops return tensors without values."""
        return self.values is not None

    @property
    def data_dependent_reads(self) -> tuple[DataDependentRead, ...]:
        """Reads of values that the tensors of a dry run do not have; empty if ops compute."""
        return () if self.values is None else self.values.reads.all()

    def gpu(self, index: int) -> SimulatedGPU:
        if not 0 <= index < len(self.gpus):
            if not self.gpus:
                raise RuntimeError(f"No CUDA GPUs are available: {VISIBLE_DEVICES} hides them all")
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{index}, of {len(self.gpus)} simulated"
            )
        return self.gpus[index]

    def hide_calls(self, *, are_hidden: bool) -> None:
        """Keep what a simulated op calls out of a profile of Python functions, or end that."""
        self.calls_are_hidden = self.allocations.calls_are_hidden = are_hidden and CAN_HIDE

    def current_stream(self, index: int) -> int:
        """Id of the stream that this thread uses on a GPU: in a backward pass, that of the node."""
        streams = self.thread.streams
        if streams.any_change:
            of_node = streams.of_new_node()
            if of_node is not None and not self._leaves_capture(of_node):
                self.use_streams(of_node)
        return streams.current.get(index, 0)

    def current_capture(self, index: int) -> Capture | None:
        """The capture of the stream that this thread uses on a GPU."""
        if not self.captures:
            return None
        return self.captures.of_stream(index, self.current_stream(index))

    def _leaves_capture(self, streams: dict[int, int]) -> bool:
        """True if a node of a captured backward pass would run on a stream that is not captured."""
        return any(
            self._current_stream_is_captured(capture.gpu.index)
            and capture
            is not self.captures.of_stream(capture.gpu.index, streams.get(capture.gpu.index, 0))
            for capture in self.captures.underway
        )

    def _current_stream_is_captured(self, index: int) -> bool:
        stream = self.thread.streams.current.get(index, 0)
        return self.captures.of_stream(index, stream) is not None

    def _refuse_unsafe_call(self, index: int) -> None:
        if self.captures:
            stream = self.thread.streams.current.get(index, 0)
            self.captures.refuse_unsafe_call(index, stream)

    def use_stream(self, index: int, stream: int) -> None:
        self.current_stream(index)  # a node that begins with this does not change it back
        self.thread.streams.use(index, stream)

    def use_streams(self, streams: dict[int, int]) -> None:
        """Let this thread use one stream of each GPU, which waits for the one used before."""
        before = self.thread.streams.current
        for index in {*before, *streams}:
            old, new = before.get(index, 0), streams.get(index, 0)
            if old == new:
                continue
            if self.waits_are_seen:
                gpu = self.gpus[index]
                work = gpu.locked(gpu.allocator.work.last, old)
                if work is not None:
                    gpu.locked(gpu.allocator.work.wait, new, work)
            self.thread.streams.use(index, new)

    def new_stream(self, index: int, priority: int) -> int:
        ids = self._stream_ids[index]
        if not ids.any_given:
            for stream_id in all_ids():
                self.traced("StreamCreation", handle_of(stream_id, index))
        return ids.next(priority)

    def sleep(self, index: int, seconds: float) -> None:
        """Let the current stream of a GPU be busy until the program synchronizes with it.

        Only queries look at the clock.
        """
        self.waits_are_seen = True
        gpu = self.gpu(index)
        stream = self.current_stream(index)
        gpu.locked(gpu.allocator.work.sleep, stream, time.perf_counter(), seconds)

    def synchronize_stream(self, index: int, stream: int) -> None:
        gpu = self.gpu(index)
        self.captures.refuse_wait(index, stream)
        gpu.locked(gpu.allocator.work.finish, stream)
        self.traced("StreamSynchronization", handle_of(stream, index))

    def start_trace(self) -> None:
        """Call what the program registers in ``torch.cuda._gpu_trace`` from now on."""
        if self._trace is None:
            self._trace = TraceCallbacks()
            self.waits_are_seen = True
            self.allocations.sweep_at_once()
            for gpu in self.gpus:
                gpu.trace(self._trace)

    @property
    def is_traced(self) -> bool:
        return self._trace is not None

    def traced(self, event: str, *args: int) -> None:
        """Call the callbacks of ``torch.cuda._gpu_trace``, if the program uses them."""
        if self._trace is not None:
            self._trace.fire(event, *args)

    def current_gpu(self) -> SimulatedGPU:
        return self.gpu(self.thread.device)

    @passes_on
    def find_gpu(self, device: Any) -> SimulatedGPU | None:
        """The GPU that a device argument means (None: the current one); None for other devices."""
        if device is None:
            return self.current_gpu()
        if isinstance(device, int) and not isinstance(device, bool):
            return self.gpu(device)
        if not isinstance(device, torch.device):
            device = torch.device(device)
        if device.type != "cuda":
            return None
        return self.gpu(self.thread.device if device.index is None else device.index)

    def gpu_of(self, tensor: torch.Tensor) -> SimulatedGPU | None:
        """The GPU that holds a tensor, None if none does."""
        allocation = self.allocations.find(tensor)
        if allocation is None:
            if isinstance(tensor, FakeTensor):
                return self.find_gpu(tensor.fake_device)
            if torch._is_functional_tensor(tensor):
                return self.gpu_of(torch._from_functional_tensor(tensor))
            local = getattr(type(tensor), "_local_tensor", None)  # a DTensor is where its part is
            return None if local is None else self.gpu_of(local.__get__(tensor))
        return allocation.gpu

    def address_of(self, storage: torch.UntypedStorage) -> int:
        """The address of a storage that ``data_ptr()`` gives: the allocator's, if it has one.

        Wrappers have none, nor has memory of another process, which this one's allocator does not
        count.
        """
        allocation = self.allocations.known.get(storage._cdata)
        if allocation is None or not allocation.address or self.thread.sees_host_addresses:
            return host_address(storage)
        return allocation.address

    def put(
        self, storage: torch.UntypedStorage, gpu: SimulatedGPU, *, is_estimate: bool = False
    ) -> None:
        """Label a new storage as living on a GPU, and allocate its memory there."""
        stream = self.current_stream(gpu.index)
        if held.standard:  # by the op whose output it is
            self._put(storage, gpu, stream, is_estimate)
        else:
            with uninterrupted(*STANDARD_SIGNALS):
                self._put(storage, gpu, stream, is_estimate)

    def _put(
        self, storage: torch.UntypedStorage, gpu: SimulatedGPU, stream: int, is_estimate: bool
    ) -> None:
        nbytes = storage.nbytes()
        allocation = gpu.allocate(nbytes, stream, is_estimate=is_estimate, is_data=True)
        try:
            self.allocations.add(storage, allocation)
        except BaseException:
            gpu.release(allocation)
            raise

    def is_in_graph_pool(self, gpu: SimulatedGPU) -> bool:
        """True if what is made now has values, behind addresses of a pool that graphs use."""
        pools = self.captures.pools
        if not pools or self.values is not None:
            return False
        return gpu.allocator.private.of_stream(self.current_stream(gpu.index)) in pools

    def put_in_pool(
        self, tensor: torch.Tensor, gpu: SimulatedGPU, *, is_estimate: bool = False
    ) -> torch.UntypedStorage:
        """As `put`, for a tensor in a graph's pool: its values move behind the pool's addresses.

        Returns:
            its new storage.
        """
        stream = self.current_stream(gpu.index)
        with uninterrupted(*STANDARD_SIGNALS):
            [before] = storages_of(tensor)
            nbytes = before.nbytes()
            allocation = gpu.allocate(nbytes, stream, is_estimate=is_estimate, is_data=True)
            try:
                if allocation.address:
                    storage = self.pool_memory[gpu.index].storage(allocation.address, nbytes)
                    with torch._C._DisableTorchDispatch():
                        storage.copy_(before, False)
                    layout = (tensor.storage_offset(), tensor.size(), tensor.stride())
                    _set_storage(tensor, storage, *layout)
                else:
                    storage = before
                self.allocations.add(storage, allocation)
            except BaseException:
                gpu.release(allocation)
                raise
        return storage

    def label(self, storage: torch.UntypedStorage, gpu: SimulatedGPU, nbytes: int = 0) -> None:
        """Label a storage that the allocator does not count: of a wrapper, or another process."""
        self.allocations.add(storage, Allocation(gpu, 0, nbytes))

    def pin(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.pinned.known:
            with uninterrupted(*STANDARD_SIGNALS):
                size = self.pinned_memory.take(storage.nbytes())
                try:
                    self.pinned.add(storage, size)
                except BaseException:
                    self.pinned_memory.give_back(size)
                    raise

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """True if CUDA copies from and to a tensor of the CPU without a buffer in between."""
        if self.pinned.find(tensor) is not None:
            return True
        if not self.registered_memory or self.gpu_of(tensor) is not None:
            return False
        with torch._C.DisableTorchFunction():
            storages = storages_of(tensor)
        return bool(storages) and self.registered_memory.holds(host_address(storages[-1]))

    def see_environment(self) -> None:
        """Follow what the program sets in its environment, until it uses a GPU.

        CUDA_VISIBLE_DEVICES hides GPUs; the allocator's settings are in PYTORCH_CUDA_ALLOC_CONF.
        """
        if not any(gpu.in_use() for gpu in self._all_gpus):
            self.gpus[:] = self._all_gpus[: visible_count(self._all_gpus)]
            self.known_gpus += self.gpus[len(self.known_gpus) :]
            self.allocator_settings.see_environment()

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Follow a storage that was resized: CUDA takes new memory, then frees the old."""
        key: int = storage._cdata
        by_storage = self.allocations.known
        before = by_storage[key]
        if storage.nbytes() != before.nbytes:
            gpu = before.gpu
            with uninterrupted(*STANDARD_SIGNALS):
                stream = self.current_stream(gpu.index)
                allocation = gpu.allocate(storage.nbytes(), stream, is_data=True)
                by_storage[key] = allocation
                gpu.release(before)

    def _release(self, allocation: Allocation) -> None:
        allocation.gpu.release_dead(allocation, waits=not self.allocations.sweeps_at_once)

    def living(self) -> Iterator[Allocation]:
        """The allocations of all storages that live on GPUs."""
        return self.allocations.values()
