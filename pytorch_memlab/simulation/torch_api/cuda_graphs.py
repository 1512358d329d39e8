"""CUDA graphs and memory pools: the calls of C++ below ``torch.cuda.graphs`` and ``.memory``.

torch's own Python runs on top. Its classes are made again over the simulated ones: those that they
derive from are not there without CUDA, or need a GPU.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from ..._common.frames.traceback_frames import without_frames
from ..._common.frames.user_code import is_of_user
from ..._common.patching.patches import Patches
from ..._common.torch.storages import after_death
from ..._common.torch.torch_release import RELEASE
from ..allocator.blocks import DEFAULT_POOL, PoolId
from ..allocator.checkpoints import (
    PoolState,
    checkpoint_state,
    live_allocations,
    set_checkpoint_state,
)
from ..dispatch.captured_ops import OpRecording
from ..dispatch.overwritten_outputs import mark_data, take_storage
from ..machine.allocation_log import code_stack
from ..machine.captures import ERROR_MODES, Capture
from ..machine.cuda_errors import cuda_error
from ..machine.cuda_generator import GeneratorState, SimulatedGenerator
from ..machine.machine import Machine
from ..machine.simulated_gpu import Allocation, SimulatedGPU
from ..machine.unsupported import refusal, unsupported

_HOLDER = 8
"""Bytes of the seed, and of the offset, that the kernels of a graph read."""

_OWN_HOLDERS_SINCE = (2, 12)
"""Release from which each graph has its own of each generator (``CUDAGeneratorImpl.h``)."""

_CLEARS_WORKSPACES_SINCE = (2, 12)
"""Release whose ``CUDAGraph::reset`` gives back what cuBLAS took on the stream of the capture."""

_MARKS_CAPTURES_SINCE = (2, 13)
"""Release from which the allocator tells captures from ``use_mem_pool`` (``markCaptureBegin``),
and a capture that failed takes no more requests (``CUDAGraph::capture_end``)."""

_REGISTERS_DRAWS_SINCE = (2, 14)
"""Release from which a generator is registered by its first draw in a capture, its holders made
then (``CUDAGeneratorState::get_capture_state``), and a failed capture's pool is given up."""


class _Graph:
    """The state of a ``CUDAGraph``, which C++ has."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.capture: Capture | None = None
        self.has_ended = False  # the capture, well
        self.is_instantiated = False
        self.increments: dict[GeneratorState, int] = {}  # of the offset, by a replay
        self.holders: list[Allocation] = []
        self.pools: list[PoolId] = []  # that are kept until it is reset, its own first

    def reset(self) -> None:
        """Give up what was captured; the pool's memory may go back once nothing else uses it."""
        capture, machine = self.capture, self.machine
        if capture is not None:
            for state in self.increments:
                state.captures.pop(capture.id, None)
            capture.gpu.captured_at.pop(capture.id, None)
            has_failed = capture not in machine.captures.underway and not self.has_ended
            if self.has_ended or (has_failed and RELEASE >= _REGISTERS_DRAWS_SINCE):
                if RELEASE >= _CLEARS_WORKSPACES_SINCE:
                    machine.workspaces.clear_stream(capture.gpu, capture.origin)
                for pool_id in self.pools:
                    capture.gpu.locked(capture.gpu.allocator.private.release, pool_id)
                machine.pool_memory[capture.gpu.index].forget_released()
        _release_holders(machine, self)
        self.increments.clear()
        self.pools.clear()
        self.capture, self.has_ended, self.is_instantiated = None, False, False


class SimulatedCUDAGraph:
    """``torch._C._CUDAGraph``."""

    machine: Machine
    _of_captures: ClassVar[WeakValueDictionary[int, SimulatedCUDAGraph]] = WeakValueDictionary()

    def __new__(cls, keep_graph: bool = False) -> Any:
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._graph = _Graph(self.machine)
        after_death(self, self._graph.reset)

    @without_frames
    def register_generator_state(self, generator: Any) -> None:
        """Let captured ops draw from a generator, and each replay move it on."""
        if not isinstance(generator, SimulatedGenerator):
            raise TypeError("register_generator_state(): a generator of a GPU is needed")
        _register(self.machine, self._graph, generator.state)

    @without_frames
    def capture_begin(
        self, pool: PoolId | None = None, capture_error_mode: str = "global", **_options: Any
    ) -> None:
        graph, machine = self._graph, self.machine
        if capture_error_mode not in ERROR_MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if graph.is_instantiated:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. "
                "To capture a new graph, create a new instance."
            )
        gpu = machine.current_gpu()
        stream = machine.current_stream(gpu.index)
        if RELEASE < _REGISTERS_DRAWS_SINCE:
            _register(machine, graph, machine.generators[gpu.index].state)
        if not stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. "
                "(However, after capture, it's ok to replay them on the default stream.)"
            )
        pool_id = DEFAULT_POOL if pool is None else (int(pool[0]), int(pool[1]))
        if pool_id == DEFAULT_POOL:
            pool_id = machine.new_pool_id(False)
        capture = Capture(gpu, stream, pool_id, capture_error_mode)
        _begin(gpu, pool_id, capture.takes)
        graph.pools = [pool_id]
        if machine.values is None:
            capture.recording = OpRecording(machine)
        if RELEASE >= _REGISTERS_DRAWS_SINCE:
            capture.register = partial(_start_draws, graph, capture)
        elif RELEASE >= _OWN_HOLDERS_SINCE:
            for _ in graph.increments:
                graph.holders += _holders(gpu, stream=0)
        machine.captures.begin(capture)
        _mark(gpu, 1)
        if RELEASE < _REGISTERS_DRAWS_SINCE:
            for state in graph.increments:
                state.captures[capture.id] = 0
        graph.capture = capture
        self._of_captures[capture.id] = self
        gpu.captured_at[capture.id] = _program_line()

    @without_frames
    def capture_end(self) -> None:
        self._end()
        self._graph.is_instantiated = not self._keep_graph
        self._warn_if_empty()

    @property
    def _has_graph_exec(self) -> bool:
        return self._graph.is_instantiated

    def capture_end_post(self) -> None:
        """The second half of ``capture_end`` from torch 2.14.1 on: no graph of CUDA is made."""

    @without_frames
    def capture_end_pre(self) -> None:
        self._end()
        self._warn_if_empty()

    def _warn_if_empty(self) -> None:
        """Warn at the line that called, as C++ does: it keeps its warnings until it returns."""
        capture = self._graph.capture
        if capture is not None and not capture.kernels:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was "
                "attempted to be captured on wrong device or stream.",
                stacklevel=1,
            )

    def _end(self) -> None:
        graph, machine = self._graph, self.machine
        capture = graph.capture
        gpu = machine.current_gpu()
        stream = machine.current_stream(gpu.index)
        if capture is None or (gpu, stream) != (capture.gpu, capture.origin):
            raise RuntimeError("Capture must end on the same stream it began on.")
        if capture not in machine.captures.underway:
            raise cuda_error("cudaErrorIllegalState")
        try:
            machine.captures.end(capture)
        finally:
            if capture not in machine.captures.underway:
                _mark(gpu, -1)
                if capture.recording is not None:
                    capture.recording.restore()
                if capture.is_valid or RELEASE >= _MARKS_CAPTURES_SINCE:
                    _end(gpu, capture.pool_id)
        for state in graph.increments:
            graph.increments[state] = state.captures.get(capture.id, 0)
        graph.has_ended = True

    @without_frames
    def instantiate(self) -> None:
        graph = self._graph
        if not graph.has_ended:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if graph.is_instantiated and not self._keep_graph:
            raise RuntimeError(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        graph.is_instantiated = True

    @without_frames
    def replay(self) -> None:
        """Run the captured ops on the same memory; without values, that changes nothing."""
        graph, machine = self._graph, self.machine
        capture = graph.capture
        if capture is None or not graph.has_ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        graph.is_instantiated = True
        under_way = machine.current_capture(capture.gpu.index)
        if under_way is not None:
            raise under_way.fail("cudaErrorStreamCaptureUnsupported")
        offsets = {state: state.offset for state in graph.increments}
        for state, increment in graph.increments.items():
            state.offset += increment
        if capture.recording is not None:
            capture.recording.replay(offsets)

    @without_frames
    def reset(self) -> None:
        self._graph.reset()

    @without_frames
    def pool(self) -> PoolId:
        graph = self._graph
        if graph.capture is None or not graph.has_ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return graph.capture.pool_id

    @without_frames
    def pools(self) -> list[PoolId]:
        graph = self._graph
        if graph.capture is None or not graph.has_ended:
            raise RuntimeError("Called CUDAGraph::pools() without a preceding successful capture.")
        return list(graph.pools)

    @without_frames
    def _retain_pool(self, pool_id: PoolId) -> None:
        """Keep a pool that ``use_mem_pool`` names in a capture, from torch 2.14 on."""
        graph, capture = self._graph, self._graph.capture
        if capture is None or graph.has_ended:
            raise RuntimeError("CUDAGraph::retain_pool may only be called during capture.")
        if pool_id == DEFAULT_POOL:
            raise RuntimeError("CUDAGraph::retain_pool expected a non-default memory pool.")
        if _pool_id(pool_id) not in graph.pools:
            capture.gpu.locked(capture.gpu.allocator.private.use, _pool_id(pool_id))
            graph.pools.append(_pool_id(pool_id))

    @classmethod
    @without_frames
    def get_currently_capturing_graph(cls) -> Any:
        capture = cls.machine.current_capture(cls.machine.current_gpu().index)
        graph = None if capture is None else cls._of_captures.get(capture.id)
        if graph is None:
            raise RuntimeError("The current stream is not currently capturing.")
        return graph

    def enable_debug_mode(self) -> None:
        """``debug_dump`` has no graph to show."""

    debug_dump = refusal("torch.cuda.CUDAGraph.debug_dump")
    raw_cuda_graph = refusal("torch.cuda.CUDAGraph.raw_cuda_graph")
    raw_cuda_graph_exec = refusal("torch.cuda.CUDAGraph.raw_cuda_graph_exec")
    begin_capture_to_if_node = refusal("torch.cuda.CUDAGraph.begin_capture_to_if_node")
    end_capture_to_conditional_node = refusal(
        "torch.cuda.CUDAGraph.end_capture_to_conditional_node"
    )


class SimulatedMemPool:
    """``torch._C._MemPool``."""

    machine: Machine

    @without_frames
    def __init__(
        self,
        allocator: Any = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        if allocator is not None:
            raise unsupported("torch.cuda.MemPool(allocator=...)")
        self._gpu = gpu = self.machine.current_gpu()
        self._id = pool_id = self.machine.new_pool_id(is_user_created)
        private = gpu.allocator.private
        gpu.locked(private.use, pool_id)
        private.of_id(pool_id).splits = not no_split
        if use_on_oom:
            private.served_on_oom[pool_id] = None
        after_death(self, partial(_give_up, gpu, pool_id))

    @property
    def id(self) -> PoolId:
        return self._id

    @property
    def allocator(self) -> None:
        """None: that of PyTorch."""

    @property
    def device(self) -> int:
        return self._gpu.index

    @without_frames
    def use_count(self) -> int:
        return self._gpu.allocator.private.use_count(self._id)


class SimulatedMemPoolContext:
    """``torch._C._MemPoolContext`` of older releases, which ``use_mem_pool`` makes there."""

    _active: ClassVar[list[SimulatedMemPool]] = []

    def __init__(self, pool: SimulatedMemPool) -> None:
        self._active.append(pool)
        after_death(self, partial(self._active.remove, pool))

    @classmethod
    def active_pool(cls) -> SimulatedMemPool | None:
        """The innermost pool in use; None outside of all."""
        return cls._active[-1] if cls._active else None


def _program_line() -> tuple[str, int]:
    """File and line of the program that runs now; of a library where no file is the program's."""
    frames = [(code.co_filename, line) for code, line in code_stack()]
    own = (frame for frame in frames if is_of_user(frame[0]))
    return next(own, frames[0] if frames else ("", 0))


def _give_up(gpu: SimulatedGPU, pool_id: PoolId) -> None:
    """Give up a MemPool, as its destructor does."""
    gpu.allocator.private.served_on_oom.pop(pool_id, None)
    gpu.locked(gpu.allocator.private.release, pool_id)
    gpu.locked(gpu.allocator.empty_cache, pool_id)


def _begin(gpu: SimulatedGPU, pool_id: PoolId, takes: Callable[[int], bool]) -> None:
    gpu.locked(gpu.allocator.private.begin, pool_id, takes)
    if RELEASE < _MARKS_CAPTURES_SINCE:
        gpu.allocator.captures += 1


def _end(gpu: SimulatedGPU, pool_id: PoolId) -> None:
    gpu.locked(gpu.allocator.private.end, pool_id)
    if RELEASE < _MARKS_CAPTURES_SINCE:
        gpu.allocator.captures -= 1


def _mark(gpu: SimulatedGPU, change: int) -> None:
    if RELEASE >= _MARKS_CAPTURES_SINCE:
        gpu.allocator.captures += change


def _register(machine: Machine, graph: _Graph, state: GeneratorState) -> None:
    if state in graph.increments:
        return
    if RELEASE < _OWN_HOLDERS_SINCE:
        gpu = machine.current_gpu()
        if not state.graphs:
            state.holders = _holders(gpu, machine.current_stream(gpu.index))
        state.graphs += 1
    graph.increments[state] = 0


def _start_draws(graph: _Graph, capture: Capture, state: GeneratorState) -> None:
    """Register a generator with a graph, at its first draw in the capture."""
    graph.holders += _holders(capture.gpu, stream=0)
    graph.increments.setdefault(state, 0)
    state.captures[capture.id] = 0


def _holders(gpu: SimulatedGPU, stream: int) -> list[Allocation]:
    return [gpu.allocate(_HOLDER, stream, is_data=True) for _ in range(2)]


def _release_holders(machine: Machine, graph: _Graph) -> None:
    """Free the seeds and offsets of a graph, or those of generators that no graph uses any more."""
    freed = graph.holders
    graph.holders = []
    if RELEASE < _OWN_HOLDERS_SINCE:
        for state in graph.increments:
            state.graphs -= 1
            if not state.graphs:
                freed, state.holders = [*freed, *state.holders], []
    for holder in freed:
        holder.gpu.release(holder)


class _PoolCalls:
    """The calls of C++ that name a pool, or the memory of one."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self._machine = machine
        self._patches = patches
        self._has_taken = False

    def of_c(self) -> dict[str, Callable[..., Any]]:
        return {
            "_graph_pool_handle": lambda: self._machine.new_pool_id(True),
            "_cuda_isCurrentStreamCapturing": self._is_capturing,
            "_cuda_beginAllocateToPool": self._begin_all,
            "_cuda_beginAllocateCurrentThreadToPool": self._begin_thread,
            "_cuda_beginAllocateCurrentStreamToPool": self._begin_stream,
            "_cuda_endAllocateToPool": self._end,
            "_cuda_endAllocateCurrentStreamToPool": self._end,
            "_cuda_releasePool": self._release,
            "_cuda_getCheckpointState": self._checkpoint,
            "_cuda_setCheckpointPoolState": self._set_checkpoint,
            "_cuda_checkPoolLiveAllocations": self._has_live,
            "_construct_storage_from_data_pointer": self._storage_at,
            "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_over,
            "_has_Standard_Deleter": lambda key: self._owner(key) is not None,
            "_free_And_Remove_DeleterFn": self._free,
            "_tensors_data_ptrs_at_indices_equal": _are_at,
            "_set_storage_access_error_msg": self._take_storage,
            "_set_storage_data_ptr_access_error_msg": self._mark_data,
            "_cuda_get_conv_benchmark_empty_cache": lambda: True,
            "_cudnn_set_conv_benchmark_empty_cache": _set_nothing,
        }

    def _is_capturing(self) -> bool:
        return self._machine.current_capture(self._machine.thread.device) is not None

    def _begin_all(self, device: int, pool_id: Sequence[int]) -> None:
        self._begin(device, pool_id, lambda _stream: True)

    def _begin_thread(self, device: int, pool_id: Sequence[int]) -> None:
        thread = _cuda_thread()
        self._begin(device, pool_id, lambda _stream: _cuda_thread() == thread)

    def _begin_stream(self, device: int, pool_id: Sequence[int]) -> None:
        current = self._machine.current_stream(self._machine.gpu(device).index)
        self._begin(device, pool_id, lambda stream: stream == current)

    def _begin(self, device: int, pool_id: Sequence[int], takes: Callable[[int], bool]) -> None:
        machine = self._machine
        gpu = machine.gpu(device)
        _begin(gpu, _pool_id(pool_id), takes)
        if machine.current_capture(gpu.index) is not None:
            machine.captures.pools.add(_pool_id(pool_id))  # replays write there too

    def _end(self, device: int, pool_id: Sequence[int]) -> None:
        _end(self._machine.gpu(device), _pool_id(pool_id))

    def _release(self, device: int, pool_id: Sequence[int]) -> None:
        gpu = self._machine.gpu(device)
        gpu.locked(gpu.allocator.private.release, _pool_id(pool_id))

    def _checkpoint(self, device: int, pool_id: Sequence[int]) -> PoolState:
        gpu = self._machine.gpu(device)
        return gpu.locked(checkpoint_state, gpu.allocator, _pool_id(pool_id))

    def _set_checkpoint(
        self,
        device: int,
        state: PoolState,
        stale_storages: Sequence[int],
        storages_to_add_deleters_to: Sequence[int] = (),
    ) -> None:
        """Set the state of a pool, and which storages free its blocks when they die."""
        gpu = self._machine.gpu(device)
        stale = dict.fromkeys(stale_storages)
        delta = gpu.locked(set_checkpoint_state, gpu.allocator, state)
        if len(stale) < len(set(delta.freed) - set(delta.allocated)):
            raise RuntimeError(
                "Any stale tensors which are being manually freed must be passed to set checkpoint"
            )
        for key in stale:
            owner = self._owner(key)
            if owner is None or owner.address not in delta.freed:
                raise RuntimeError(
                    "Unexpected deleter function on storage, could not swap function"
                )
            self._set_owner(key, is_owner=False)
        # Outputs that share a block name it more than once.
        allocations = self._machine.allocations.known
        keys = {allocations[key].address: key for key in storages_to_add_deleters_to}
        for address in keys.keys() & set(delta.allocated):
            if allocations[keys[address]].is_owner:
                raise RuntimeError(" Not expecting deleter function")
            self._set_owner(keys[address], is_owner=True)

    def _has_live(self, device: int, pool_id: Sequence[int], expected: set[int]) -> bool:
        gpu = self._machine.gpu(device)
        return gpu.locked(live_allocations, gpu.allocator, _pool_id(pool_id)) == expected

    def _storage_at(self, address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
        """A storage over memory of a pool, which does not free it when it dies."""
        machine = self._machine
        gpu = machine.find_gpu(device)
        if gpu is None:
            made: torch.UntypedStorage = _storage_on_cpu(address, device, nbytes)
            return made
        storage = None
        if machine.values is None:
            storage = machine.pool_memory[gpu.index].storage_at(address, nbytes)
        if storage is None:
            storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        machine.allocations.add(storage, Allocation(gpu, address, nbytes, is_owner=False))
        return storage

    def _owner(self, key: int) -> Allocation | None:
        label = self._machine.allocations.known.get(key)
        return label if label is not None and label.address and label.is_owner else None

    def _set_owner(self, key: int, *, is_owner: bool) -> None:
        allocations = self._machine.allocations.known
        label = allocations[key]
        allocations[key] = Allocation(label.gpu, label.address, label.nbytes, is_owner)

    def _free(self, key: int) -> None:
        owner = self._owner(key)
        if owner is None:
            raise RuntimeError("Expected standard deleter")
        self._set_owner(key, is_owner=False)
        owner.gpu.release(owner)

    def _mark_data(self, key: int, message: str) -> None:
        storage = torch.UntypedStorage._new_with_weak_ptr(key)
        if storage is not None:
            mark_data(self._machine, storage, message)

    def _take_storage(self, tensor: torch.Tensor, message: str) -> None:
        take_storage(self._machine, tensor, message)
        if self._has_taken:
            return
        self._has_taken = True
        check = self._machine.overwritten.check_tensor

        @self._patches.around(torch.Tensor, "untyped_storage")
        @without_frames
        def untyped_storage(of: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
            check(tensor, data=False)
            return of(tensor)


def _cuda_thread() -> tuple[int, bool]:
    """This thread; on CUDA the nodes of a backward pass run in threads of their own."""
    return threading.get_ident(), torch._C._current_autograd_node() is not None


def _pool_id(pool_id: Sequence[int]) -> PoolId:
    first, second = pool_id
    return int(first), int(second)


def _tensor_over(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=metadata["dtype"], device=storage.device)
    layout = (metadata["storage_offset"], metadata["size"], metadata["stride"])
    return made.set_(storage, *layout)


def _set_nothing(*_: Any) -> None:
    """Set what changes no memory: the benchmarks of cuDNN."""


def _are_at(tensors: Sequence[Any], addresses: Sequence[int], indices: Sequence[int]) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


_storage_on_cpu: Callable[[int, Any, int], Any] = torch._C._construct_storage_from_data_pointer


def install(machine: Machine, patches: Patches) -> None:
    """Let graphs and pools be simulated, until undone."""
    calls = {
        name: without_frames(call) for name, call in _PoolCalls(machine, patches).of_c().items()
    }
    bases = {"_CUDAGraph": SimulatedCUDAGraph, "_MemPool": SimulatedMemPool}
    for base in bases.values():
        patches.set(base, "machine", machine)
    if hasattr(torch._C, "_MemPoolContext"):
        bases["_MemPoolContext"] = SimulatedMemPoolContext
    replaced = {**calls, **bases, "_cuda_CUDAAllocator_AllocatorState": PoolState}
    patches.set_all(torch._C, replaced)
    for module in (torch.cuda.graphs, torch.cuda.memory):
        held = replaced.keys() & vars(module).keys()
        patches.set_all(module, {name: replaced[name] for name in held})
    for module, name, base in (
        (torch.cuda.graphs, "CUDAGraph", SimulatedCUDAGraph),
        (torch.cuda.memory, "MemPool", SimulatedMemPool),
        (torch.cuda.memory, "MemPoolContext", SimulatedMemPoolContext),
    ):
        original = vars(module).get(name)
        if original is not None:
            made = _over(original, base)
            patches.set(module, name, made)
            patches.set(torch.cuda, name, made)
    patches.set(SimulatedGenerator, "capture_on", staticmethod(machine.current_capture))
    # a stream of the GPU that was simulated before
    patches.set(torch.cuda.graphs.graph, "default_capture_stream", None)


@functools.cache
def _over(original: type, base: type) -> type:
    """A class of torch with another base; ``super()`` in its methods finds that."""
    cell = types.CellType()
    members = {
        name: _in_class(value, cell)
        for name, value in vars(original).items()
        if name not in ("__dict__", "__weakref__")
    }
    made = type(original.__name__, (base,), members)
    cell.cell_contents = made
    return made


def _in_class(value: Any, cell: types.CellType) -> Any:
    """A member of a class as that of another, whose ``__class__`` is in the cell."""
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(_in_class(value.__func__, cell))
    if isinstance(value, property):
        return property(_in_class(value.fget, cell), doc=value.__doc__)
    if not isinstance(value, types.FunctionType) or "__class__" not in value.__code__.co_freevars:
        return value
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    closure = tuple(cell if name == "__class__" else held for name, held in cells)
    copy = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, closure
    )
    copy.__kwdefaults__ = value.__kwdefaults__
    vars(copy).update(vars(value))
    return copy
