"""CUDA graphs and memory pools: the calls of C++ below ``torch.cuda.graphs`` and ``.memory``.

torch's own Python runs on top. Its classes are made again over the simulated ones: those that they
derive from are not there without CUDA, or need a GPU.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from ..._common.frames.traceback_frames import without_frames
from ..._common.frames.user_code import is_of_user
from ..._common.patching.patches import Patches
from ..._common.torch.storages import after_death
from ..allocator.blocks import DEFAULT_POOL, PoolId
from ..allocator.checkpoints import (
    PoolState,
)
from ..dispatch.captured_ops import OpRecording
from ..machine.allocation_log import code_stack
from ..machine.captures import ERROR_MODES, Capture
from ..machine.cuda_errors import cuda_error
from ..machine.cuda_generator import GeneratorState, SimulatedGenerator
from ..machine.machine import Machine
from ..machine.refused_calls import refusal
from ..machine.simulated_gpu import Allocation, SimulatedGPU
from ..machine.torch_release import RELEASE
from .memory_pools import (
    MARKS_CAPTURES_SINCE,
    PoolCalls,
    SimulatedMemPool,
    SimulatedMemPoolContext,
    begin_pool,
    end_pool,
    mark_capture,
    pool_id_of,
)
from .rebased_class import over

_HOLDER = 8
"""Bytes of the seed, and of the offset, that the kernels of a graph read."""

_OWN_HOLDERS_SINCE = (2, 12)
"""Release from which each graph has its own of each generator (``CUDAGeneratorImpl.h``)."""

_CLEARS_WORKSPACES_SINCE = (2, 12)
"""Release whose ``CUDAGraph::reset`` gives back what cuBLAS took on the stream of the capture."""


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


def _check_capture(graph: _Graph, error_mode: str) -> None:
    if error_mode not in ERROR_MODES:
        raise RuntimeError(
            "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
            f"{error_mode}"
        )
    if graph.is_instantiated:
        raise RuntimeError(
            "This CUDAGraph instance already owns a captured graph. "
            "To capture a new graph, create a new instance."
        )


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
        _check_capture(graph, capture_error_mode)
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
        begin_pool(gpu, pool_id, capture.takes)
        graph.pools = [pool_id]
        if machine.values is None:
            capture.recording = OpRecording(machine)
        if RELEASE >= _REGISTERS_DRAWS_SINCE:
            capture.register = partial(_start_draws, graph, capture)
        elif RELEASE >= _OWN_HOLDERS_SINCE:
            for _ in graph.increments:
                graph.holders += _holders(gpu, stream=0)
        machine.captures.begin(capture)
        mark_capture(gpu, 1)
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
                mark_capture(gpu, -1)
                if capture.recording is not None:
                    capture.recording.restore()
                if capture.is_valid or RELEASE >= MARKS_CAPTURES_SINCE:
                    end_pool(gpu, capture.pool_id)
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
        if pool_id_of(pool_id) not in graph.pools:
            capture.gpu.locked(capture.gpu.allocator.private.use, pool_id_of(pool_id))
            graph.pools.append(pool_id_of(pool_id))

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


def _program_line() -> tuple[str, int]:
    """File and line of the program that runs now; of a library where no file is the program's."""
    frames = [(code.co_filename, line) for code, line in code_stack()]
    own = (frame for frame in frames if is_of_user(frame[0]))
    return next(own, frames[0] if frames else ("", 0))


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


def install(machine: Machine, patches: Patches) -> None:
    """Let graphs and pools be simulated, until undone."""
    calls = {
        name: without_frames(call) for name, call in PoolCalls(machine, patches).of_c().items()
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
            made = over(original, base)
            patches.set(module, name, made)
            patches.set(torch.cuda, name, made)
    patches.set(SimulatedGenerator, "capture_on", staticmethod(machine.current_capture))
    # a stream of the GPU that was simulated before
    patches.set(torch.cuda.graphs.graph, "default_capture_stream", None)
