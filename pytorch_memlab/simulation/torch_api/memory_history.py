"""PyTorch's memory history: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch

from ..._common.frames.call_stacks import FrameLine, TakenStack, call_stacks
from ..._common.patching.patches import Patches
from ..._common.torch.forward_ops import ForwardOps
from ...errors import UnsupportedCUDACallError
from ..allocator.blocks import DEFAULT_POOL, Block, PoolId
from ..allocator.events import HISTORY_ACTIONS, RELEASES
from ..machine.machine import Machine
from ..machine.simulated_gpu import Allocation, SimulatedGPU
from ..machine.streams import handle_of
from ..machine.torch_release import RELEASE
from .memory_pools import SimulatedMemPoolContext

_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}


class _Entry(NamedTuple):
    """An event of an allocator; ``AllocatorEvents`` has its action, address and size."""

    action: str
    address: int
    size: int
    stream: int  # the handle
    time: int  # in nanoseconds since the epoch
    stack: TakenStack | None
    forward: TakenStack | None  # of an allocation in the backward pass, the stack of the forward op
    metadata: str
    block: Hashable = None  # of an allocation, what a profiler that is on knows of it
    pool_id: PoolId = DEFAULT_POOL


class _State(NamedTuple):
    """All that a snapshot shows of one GPU."""

    entries: list[_Entry]
    segments: list[dict[str, Any]]
    block_stacks: dict[int, TakenStack]  # by address
    segment_stacks: dict[int, TakenStack]  # by address
    in_use: list[Any] | None  # the blocks, as a profiler that is on knows them; None without one


class _Metadata(threading.local):
    text = ""


class _Recorder:
    """The history of one GPU."""

    def __init__(self, gpu: SimulatedGPU, history: MemoryHistory) -> None:
        self.gpu = gpu
        self.entries: deque[_Entry] = deque()
        self.blocks: dict[int, TakenStack] = {}
        self.segments: dict[int, TakenStack] = {}
        self._history = history

    def record(self, action: str, address: int, size: int, stream: int) -> None:
        """Take an event of the allocator: what ``AllocatorEvents`` calls."""
        history = self._history
        stack = self._stack_of(action, address)
        if action == "alloc" and address in self.segments:
            self._leave_segment(self.gpu.allocator.allocated_blocks[address])
        forward = None
        if action == "alloc" and stack is not None:
            forward = history.forward_ops.of_current_node()
        if action not in history.skipped:
            if history.level < _LEVELS["alloc"]:
                stack = forward = None
            now, metadata = time.time_ns(), history.metadata.text
            handle = handle_of(stream, self.gpu.index)
            block = history.block_at(self.gpu, address) if action == "alloc" else None
            pool_id = self.gpu.allocator.event_pool_id
            event = (action, address, size, handle, now, stack, forward, metadata)
            self.entries.append(_Entry(*event, block, pool_id))

    def _leave_segment(self, block: Block) -> None:
        """Forget the stack of a segment whose first block was split just now."""
        # The stack stays with the old ``Block`` of CUDACachingAllocator.cpp, which is then the free
        # rest; merging the two keeps what the first one has: none. A snapshot reads the first
        # one's.
        rest = block.next
        if block.prev is None and rest is not None and rest.mapped and rest.is_free:
            del self.segments[block.address]

    def _stack_of(self, action: str, address: int) -> TakenStack | None:
        """The stack that belongs to an event: for a free, by default, that of the allocation."""
        # What goes back to the GPU to make room for a request has the stack of the request.
        level, stack = self._history.level, call_stacks.take
        if action in ("alloc", "segment_alloc", "segment_map"):
            if level < _LEVELS["state"]:
                return None
            taken = stack()
            (self.blocks if action == "alloc" else self.segments)[address] = taken
            return taken
        kept = None
        if action == "free_requested":
            kept = self.blocks.get(address)
        elif action == "free_completed":
            kept = self.blocks.pop(address, None)
        elif action in RELEASES:
            kept = self.segments.pop(address, None)
        of_request = action == "oom" or (action in RELEASES and self.gpu.allocator.is_making_room)
        takes = level >= _LEVELS["state" if of_request else "all"]
        return stack() if takes else kept


class MemoryHistory:
    """The history of all simulated GPUs, for ``torch.cuda.memory``."""

    def __init__(self, machine: Machine) -> None:
        self.level = 0
        self.skipped: frozenset[str] = frozenset()
        self.metadata = _Metadata()
        self._enabled = False
        self._recorders = [_Recorder(gpu, self) for gpu in machine.gpus]
        self._machine = machine
        self.forward_ops = ForwardOps()

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch._C`` that the history answers."""
        return {
            "_cuda_record_memory_history": self._record,
            "_cuda_record_memory_history_legacy": self._record_legacy,
            "_cuda_isHistoryEnabled": lambda: self._enabled,
            "_cuda_memorySnapshot": self._snapshot,
            "_cuda_attach_out_of_memory_observer": self._attach_out_of_memory_observer,
            "_cuda_setMemoryMetadata": partial(setattr, self.metadata, "text"),
            "_cuda_getMemoryMetadata": lambda: self.metadata.text,
            "_cuda_allocationTraceback": self._traceback,
            "_cuda_memoryMetadataSupported": lambda: True,
            "_cuda_annotateMemory": self._annotate,
        }

    def _record(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Sequence[str] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        if record_pinned_host_memory:
            raise UnsupportedCUDACallError(
                "_record_memory_history(record_pinned_host_memory=True) is not covered by the "
                "simulated GPU; leave it out to record the memory of the GPUs"
            )
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in _LEVELS:
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        for action in skip_actions:
            if action not in HISTORY_ACTIONS:
                raise RuntimeError(f"unknown action to skip: {action!r}")
        self.skipped = frozenset(skip_actions)
        most = max_entries if enabled == "all" else 1
        self._switch(enabled is not None and record_cuda, _LEVELS[context], most, clear_history)

    def _record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        record_context_cpp: bool = False,
        *rest: Any,
        **options: Any,
    ) -> None:
        context = "alloc" if trace_alloc_record_context else "state" if record_context else None
        state = "all" if enabled else None
        self._record(state, context, "all", trace_alloc_max_entries, *rest, **options)

    def _switch(self, enabled: bool, level: int, max_entries: int, clear: bool) -> None:
        if enabled and not self._enabled:
            self._machine.allocations.sweep_at_once()  # a free has its own time and stack
        elif self._enabled and not enabled:
            self._machine.allocations.sweep_later()
        self._enabled = enabled
        self.level = level if enabled else 0
        observers = dict.fromkeys(self._machine.op_observers)
        was_on = self.forward_ops.op_runs in observers
        observers.pop(self.forward_ops.op_runs, None)
        is_on = self.level >= _LEVELS["state"]
        if is_on:
            observers[self.forward_ops.op_runs] = None
        if is_on != was_on:
            self.forward_ops.forget()
        self._machine.op_observers = tuple(observers)
        for recorder in self._recorders:
            kept = () if clear or not enabled else recorder.entries
            recorder.entries = deque(kept, maxlen=min(max(1, max_entries), sys.maxsize))
            allocator = recorder.gpu.allocator
            change = allocator.observe if enabled else allocator.stop_observing
            recorder.gpu.locked(change, recorder.record)

    def _attach_out_of_memory_observer(
        self, observer: Callable[[int, int, int, int], object]
    ) -> None:
        for recorder in self._recorders:
            told = partial(observer, recorder.gpu.index)
            recorder.gpu.out_of_memory_observers.append(told)

    def _traceback(self, address: int) -> list[dict[str, Any]] | None:
        allocation = _allocation_at(self._machine, address)
        address = address if allocation is None else allocation.address
        for recorder in self._recorders:
            if address in recorder.blocks:
                return list(_Frames().of(recorder.blocks[address]))
        return None

    def _annotate(self, address: int, text: str) -> None:
        allocation = _allocation_at(self._machine, address)
        if allocation is None or not self._enabled or "annotate" in self.skipped:
            return
        gpu = allocation.gpu
        stack = call_stacks.take() if self.level >= _LEVELS["alloc"] else None
        event = ("annotate", allocation.address, allocation.nbytes, 0, time.time_ns())
        self._recorders[gpu.index].entries.append(_Entry(*event, stack, None, text))

    def block_at(self, gpu: SimulatedGPU, address: int) -> Hashable:
        """The block at an address, where a profiler that is on knows it."""
        profiled = self._machine.recorder
        return None if profiled is None else profiled.block_at(gpu.index, address)

    def _state(self, recorder: _Recorder) -> _State:
        """The state of one GPU: no other thread may change it now."""
        profiled, device = self._machine.recorder, recorder.gpu.index
        is_followed = profiled is not None and device in profiled.live
        return _State(
            list(recorder.entries),
            recorder.gpu.allocator.snapshot(),
            recorder.blocks.copy(),
            recorder.segments.copy(),
            profiled.live[device].blocks() if is_followed else None,
        )

    def _descriptions(self, state: _State) -> dict[Hashable, dict[str, str]]:
        """Module and category of blocks, which PyTorch's own snapshots lack."""
        if state.in_use is None or not self._machine.thread.describes_blocks:
            return {}
        made = [entry.block for entry in state.entries if entry.block is not None]
        descriptions: dict[Hashable, dict[str, str]]
        descriptions = self._machine.recorder.descriptions((*made, *state.in_use))
        return descriptions

    def _snapshot(self, pool: Sequence[Any] | None = None) -> dict[str, Any]:
        call_stacks.read()
        frames = _Frames()
        traces, segments = [], []
        pool_id = tuple(pool[:2]) if pool and any(pool[:2]) else None  # 0 and 0: of all pools
        active_pool = SimulatedMemPoolContext.active_pool()
        if active_pool is not None:
            pool_id = active_pool.id
        for recorder in self._recorders:
            state = recorder.gpu.locked(self._state, recorder)
            descriptions = self._descriptions(state)
            entries = () if pool is not None and not all(pool[2:]) else state.entries
            traces.append([_as_dict(entry, frames, descriptions) for entry in entries])
            in_use = {block.address: block for block in state.in_use or ()}
            for segment in state.segments:
                if pool_id and segment["segment_pool_id"] != pool_id:
                    continue
                segment["stream"] = handle_of(segment["stream"], recorder.gpu.index)
                segment["frames"] = frames.of(state.segment_stacks.get(segment["address"]))
                for block in segment["blocks"]:
                    if block["state"] != "inactive":
                        block["frames"] = frames.of(state.block_stacks.get(block["address"]))
                        block |= descriptions.get(in_use.get(block["address"]), {})
                segments.append(segment)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": _settings(self._machine),
            "external_annotations": [],
        }


class _Frames:
    """Stacks as lists of dictionaries; equal frames and stacks are one object each."""

    def __init__(self) -> None:
        @cache
        def frame(place: FrameLine) -> dict[str, Any]:
            filename, line, name = place
            return {"name": name, "filename": filename, "line": line}

        self._stack = cache(lambda number: [*map(frame, call_stacks.places_of(number))])

    def of(self, stack: TakenStack | None) -> list[dict[str, Any]]:
        """The frames of a stack, innermost first; none of None."""
        return [] if stack is None else self._stack(call_stacks.number_of(stack))


_POOLS_SINCE: Final = (2, 12)
"""Release from which entries have the ids of pools (pull request 177717)."""


def _as_dict(
    entry: _Entry, frames: _Frames, descriptions: dict[Hashable, dict[str, str]]
) -> dict[str, Any]:
    first = "device_free" if entry.action == "oom" else "addr"
    described: dict[str, Any] = {
        "action": entry.action,
        first: entry.address,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": entry.time // 1000,
        "compile_context": "N/A",
        "user_metadata": entry.metadata,
    }
    if RELEASE >= _POOLS_SINCE:
        described["pool_id"] = entry.pool_id
    if entry.stack is not None:
        described["frames"] = frames.of(entry.stack)
    if entry.forward is not None:
        described["forward_frames"] = frames.of(entry.forward)
    described |= descriptions.get(entry.block, {})
    return described


def _settings(machine: Machine) -> dict[str, Any]:
    settings = machine.known_gpus[0].allocator.settings
    return {
        "PYTORCH_CUDA_ALLOC_CONF": machine.allocator_settings.text,
        "max_split_size": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(2**power): divisions
            for power, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }


def install(machine: Machine, patches: Patches) -> None:
    patches.set_all(torch._C, MemoryHistory(machine).calls())


def _allocation_at(machine: Machine, address: int) -> Allocation | None:
    """The allocation of the storage that begins at an address, None if there is none."""
    allocations = machine.allocations.known.values()
    return next((place for place in allocations if place.address == address != 0), None)
