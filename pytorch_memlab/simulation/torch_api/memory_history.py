"""PyTorch's memory history: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...errors import UnsupportedCUDACallError
from ..stream_ids import handle_of

if TYPE_CHECKING:
    from ..machine import Machine
    from ..patches import Patches
    from ..simulated_gpu import SimulatedGPU

_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}
_ACTIONS = frozenset(
    {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
    | {"segment_map", "segment_unmap", "oom", "snapshot"}
)

_OWN_FILES = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), ""),
    *(
        os.path.join(os.path.dirname(torch.__file__), *parts)
        for parts in (("_ops.py",), ("overrides.py",), ("utils", "_python_dispatch.py"))
    ),
)
"""Files whose frames only the simulation puts on the stack."""

Stack = tuple[tuple[CodeType, int], ...]
"""Code and offset of the instruction of each frame, innermost first."""


class _Entry(NamedTuple):
    """An event of an allocator.

    Args:
        action: as ``AllocatorEvents`` names it.
        address: of the block or segment; the bytes free on the GPU for ``oom``.
        size: in bytes.
        stream: handle of the stream.
        time: in nanoseconds since the epoch.
        stack: None if it was not asked for.
        forward: of an allocation in the backward pass, the stack of the forward op; else None.
        metadata: what ``_set_memory_metadata`` gave.
    """

    action: str
    address: int
    size: int
    stream: int
    time: int
    stack: Stack | None
    forward: Stack | None
    metadata: str


class _Metadata(threading.local):
    text = ""


class _Recorder:
    """The history of one GPU.

    Args:
        gpu: the GPU.
        history: how to record.
    """

    def __init__(self, gpu: SimulatedGPU, history: MemoryHistory) -> None:
        self.gpu = gpu
        self.entries: deque[_Entry] = deque()
        self.blocks: dict[int, Stack] = {}
        self.segments: dict[int, Stack] = {}
        self._history = history

    def record(self, action: str, address: int, size: int, stream: int) -> None:
        """Take an event of the allocator: what ``AllocatorEvents`` calls."""
        history = self._history
        stack = self._stack_of(action, address)
        forward = None
        if action == "alloc" and stack is not None:
            forward = history.forward_stack(stack)
        if action not in history.skipped:
            if history.level < _LEVELS["alloc"]:
                stack = forward = None
            now, metadata = time.time_ns(), history.metadata.text
            handle = handle_of(stream, self.gpu.index)
            entry = _Entry(action, address, size, handle, now, stack, forward, metadata)
            self.entries.append(entry)

    def _stack_of(self, action: str, address: int) -> Stack | None:
        """The stack that belongs to an event: for a free, by default, that of the allocation."""
        level, stack = self._history.level, self._history.stack
        if action == "alloc":
            if level >= _LEVELS["state"]:
                self.blocks[address] = taken = stack()
                return taken
            return None
        if action in ("segment_alloc", "segment_map"):
            if level >= _LEVELS["state"]:
                self.segments[address] = taken = stack()
                return taken
            return None
        kept = None
        if action == "free_requested":
            kept = self.blocks.get(address)
        elif action == "free_completed":
            kept = self.blocks.pop(address, None)
        elif action in ("segment_free", "segment_unmap"):
            kept = self.segments.pop(address, None)
        return stack() if level >= _LEVELS["all"] else kept


class MemoryHistory:
    """What ``torch.cuda.memory`` asks about the history of all simulated GPUs.

    Args:
        machine: the simulated GPUs.
    """

    def __init__(self, machine: Machine) -> None:
        self.level = 0
        self.skipped: frozenset[str] = frozenset()
        self.metadata = _Metadata()
        self._enabled = False
        self._recorders = [_Recorder(gpu, self) for gpu in machine.gpus]
        self._machine = machine
        self._stacks: dict[Stack, Stack] = {}
        self._belongs: dict[CodeType, bool] = {}
        self._nodes: dict[tuple[int, int], Stack] = {}

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch._C`` that the history answers."""
        return {
            "_cuda_record_memory_history": self._record,
            "_cuda_record_memory_history_legacy": self._record_legacy,
            "_cuda_isHistoryEnabled": lambda: self._enabled,
            "_cuda_memorySnapshot": self._snapshot,
            "_cuda_attach_out_of_memory_observer": self._attach_out_of_memory_observer,
            "_cuda_setMemoryMetadata": self._set_metadata,
            "_cuda_getMemoryMetadata": lambda: self.metadata.text,
            "_cuda_allocationTraceback": self._traceback,
        }

    def stack(self) -> Stack:
        """The Python frames of the program that runs now in this thread, innermost first."""
        belongs = self._belongs
        found: list[tuple[CodeType, int]] = []
        called_by_mode = None
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = belongs.get(code)
            if known is None:
                known = belongs[code] = not code.co_filename.startswith(_OWN_FILES)
            if not known:
                called_by_mode = found[-1][0] if found else None
            elif code is not called_by_mode:
                # A function of torch calls the function mode, which calls it again: one frame.
                found.append((code, frame.f_lasti))
                called_by_mode = None
            frame = frame.f_back
        stack = tuple(found)
        return self._stacks.setdefault(stack, stack)

    def forward_stack(self, stack: Stack) -> Stack | None:
        """The stack of the forward op to whose autograd node an allocation belongs.

        In the forward pass the allocation is remembered under the sequence number of the node
        that was made last, which is the node of the op that allocates; what comes after it, before
        the next node, is no part of it. The numbers are per thread.

        Args:
            stack: of the allocation.

        Returns:
            The stack; None in the forward pass, or where the op of the node allocated nothing.
        """
        thread = threading.get_ident()
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            return self._nodes.get((thread, node._sequence_nr()))
        if torch.is_grad_enabled():
            self._nodes.setdefault((thread, torch._C._autograd._get_sequence_nr() - 1), stack)
        return None

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
            if action not in _ACTIONS:
                raise RuntimeError(f"unknown action to skip: {action!r}")
        self._switch(
            enabled is not None and record_cuda,
            _LEVELS[context],
            max_entries if enabled == "all" else 1,
            clear=clear_history,
            skipped=skip_actions,
        )

    def _record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        *_options: Any,
    ) -> None:
        level = "alloc" if trace_alloc_record_context else "state" if record_context else None
        self._switch(enabled, _LEVELS[level], trace_alloc_max_entries, clear=False, skipped=())

    def _switch(
        self, enabled: bool, level: int, max_entries: int, *, clear: bool, skipped: Sequence[str]
    ) -> None:
        self._enabled = enabled
        self.level = level if enabled else 0
        self.skipped = frozenset(skipped)
        for recorder in self._recorders:
            kept = () if clear or not enabled else recorder.entries
            if not kept:
                self._nodes.clear()
            recorder.entries = deque(kept, maxlen=min(max(1, max_entries), sys.maxsize))
            recorder.gpu.call("observe", recorder.record if enabled else None)

    def _attach_out_of_memory_observer(
        self, observer: Callable[[int, int, int, int], object]
    ) -> None:
        for recorder in self._recorders:
            told = partial(observer, recorder.gpu.index)
            recorder.gpu.out_of_memory_observers.append(told)

    def _set_metadata(self, text: str) -> None:
        self.metadata.text = text

    def _traceback(self, address: int) -> list[dict[str, Any]] | None:
        for recorder in self._recorders:
            if address in recorder.blocks:
                return list(_Frames().of(recorder.blocks[address]))
        return None

    def _snapshot(self, *_options: Any) -> dict[str, Any]:
        frames = _Frames()
        traces, segments = [], []
        for recorder in self._recorders:
            traces.append([_as_dict(entry, frames) for entry in recorder.entries])
            for segment in recorder.gpu.call("snapshot"):
                segment["stream"] = handle_of(segment["stream"], recorder.gpu.index)
                segment["frames"] = frames.of(recorder.segments.get(segment["address"]))
                for block in segment["blocks"]:
                    if block["state"] != "inactive":
                        block["frames"] = frames.of(recorder.blocks.get(block["address"]))
                segments.append(segment)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": _settings(self._machine.known_gpus[0]),
            "external_annotations": [],
        }


class _Frames:
    """Stacks as lists of dictionaries; equal frames and stacks are one object each."""

    def __init__(self) -> None:
        self._lines: dict[CodeType, dict[int, int]] = {}
        self._frames: dict[tuple[CodeType, int], dict[str, Any]] = {}
        self._stacks: dict[int, list[dict[str, Any]]] = {}

    def of(self, stack: Stack | None) -> list[dict[str, Any]]:
        """The frames of a stack, innermost first; none of None."""
        if stack is None:
            return []
        known = self._stacks.get(id(stack))
        if known is None:
            known = self._stacks[id(stack)] = [self._frame(*place) for place in stack]
        return known

    def _frame(self, code: CodeType, offset: int) -> dict[str, Any]:
        known = self._frames.get((code, offset))
        if known is None:
            if code not in self._lines:
                self._lines[code] = dict(_lines_of(code))
            line = self._lines[code].get(offset, code.co_firstlineno)
            known = self._frames[code, offset] = {
                "name": code.co_name,
                "filename": code.co_filename,
                "line": line,
            }
        return known


def _lines_of(code: CodeType) -> Iterator[tuple[int, int]]:
    for start, end, line in code.co_lines():
        if line is not None:
            for offset in range(start, end, 2):
                yield offset, line


def _as_dict(entry: _Entry, frames: _Frames) -> dict[str, Any]:
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
    if entry.stack is not None:
        described["frames"] = frames.of(entry.stack)
    if entry.forward is not None:
        described["forward_frames"] = frames.of(entry.forward)
    return described


def _settings(gpu: SimulatedGPU) -> dict[str, Any]:
    settings = gpu.allocator.settings
    return {
        "PYTORCH_CUDA_ALLOC_CONF": torch._C._accelerator_getAllocatorSettings(),
        "max_split_size": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(2**power): divisions
            for power, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }


def install(machine: Machine, patches: Patches) -> None:
    """Answer for the memory history until the patches are undone.

    Args:
        machine: the simulated GPUs.
        patches: who puts the originals back.
    """
    for name, call in MemoryHistory(machine).calls().items():
        patches.set(torch._C, name, call)
