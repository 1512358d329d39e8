"""``torch.profiler``: the memory of simulated GPUs, which PyTorch's own profiler cannot see.

Note [Memory of simulated GPUs in a profile]
The allocators in C++ report memory to PyTorch's profiler, and they see host memory only. What
reads a profile's memory (``torch.cuda._memory_viz.profile_plot``, ``export_memory_timeline``) asks
``profile._memory_profile()`` for it: a tree of events, a timeline and categories. A profile that
was taken under simulation answers with the events of the simulated allocators instead: with the
sizes that were requested, without categories, and without host memory, which holds the values of
simulated tensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from torch._C._profiler import _EventType
from torch.autograd import profiler as autograd_profiler
from torch.profiler import profiler as kineto_profiler

from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from .memory_history import MemoryHistory

_NEEDED: Final = ("record_shapes", "profile_memory", "with_stack")
"""The options that PyTorch requires of a profile of memory."""

_Events = list[dict[str, Any]]

_BEFORE: Final = -1  # time of what was there before the profile


class _Node(NamedTuple):
    """An event of the tree: an allocation, or the call of a Python function around it."""

    tag: Any
    name: str
    parent: _Node | None
    extra_fields: _Allocation | None = None
    start_time_ns: int = 0


@dataclass(frozen=True)
class _Allocation:
    id: int
    ptr: int
    allocation_id: int
    device: torch.device
    alloc_size: int


class GPUMemoryProfile:
    """The memory of simulated GPUs in a profile."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self._entries: list[tuple[int, str, _Allocation]] = []
        self._nodes: list[_Node] = []
        self._categories = SimpleNamespace(get=lambda *_tensor: None)  # no category is known
        for index, trace in enumerate(snapshot["device_traces"]):
            segments = [segment for segment in snapshot["segments"] if segment["device"] == index]
            self._add_device(torch.device("cuda", index), trace, segments)
        self._op_tree = SimpleNamespace(sorted_nodes=self._nodes)

    def _add_device(self, device: torch.device, trace: _Events, segments: _Events) -> None:
        living: dict[int, _Allocation] = {}
        for address, size in _in_use_all_along(trace, segments):
            self._make(device, address, size)
        for event in trace:
            address, time = event.get("addr", 0), event["time_us"] * 1000
            if event["action"] == "alloc":
                living[address] = made = self._make(device, address, event["size"], time)
                self._nodes.append(_node(event.get("frames", ()), made, time))
            elif event["action"] == "free_completed":
                freed = living.pop(address, None) or self._make(device, address, event["size"])
                self._entries.append((time, "DESTROY", freed))

    def _make(
        self, device: torch.device, address: int, size: int, time: int = _BEFORE
    ) -> _Allocation:
        number = len(self._entries)
        made = _Allocation(number, address, number, device, size)
        self._entries.append((time, "PREEXISTING" if time == _BEFORE else "CREATE", made))
        return made

    @property
    def timeline(self) -> tuple[tuple[int, Any, tuple[Any, int], int], ...]:
        """Time in nanoseconds, action, tensor with its version, and bytes of each event."""
        from torch.profiler._memory_profiler import Action, TensorKey

        key: Callable[[Any], Any] = TensorKey.from_allocation
        return tuple(
            (time, Action[action], (key(made), 0), made.alloc_size)
            for time, action, made in sorted(self._entries, key=itemgetter(0))
        )


def _in_use_all_along(trace: _Events, segments: _Events) -> Iterator[tuple[int, int]]:
    """Address and size of the blocks that are in use at the end and that the trace did not make."""
    made = {event["addr"] for event in trace if event["action"] == "alloc"}
    for block in (block for segment in segments for block in segment["blocks"]):
        if block["state"] == "active_allocated" and block["address"] not in made:
            yield block["address"], block["requested_size"]


def _node(frames: Any, made: _Allocation, time: int) -> _Node:
    parent = None
    for frame in reversed(frames):
        place = f"{os.path.basename(frame['filename'])}({frame['line']}): {frame['name']}"
        parent = _Node(_EventType.PyCall, place, parent)
    return _Node(_EventType.Allocation, "[memory]", parent, made, time)


def install(machine: Machine, patches: Patches) -> None:
    @patches.around(kineto_profiler._KinetoProfile, "start_trace")
    def start_trace(start: Callable[[Any], None], profile: Any) -> None:
        if all(getattr(profile, name, False) for name in _NEEDED):
            calls = MemoryHistory(machine).calls()
            calls["_cuda_record_memory_history"]("all", "alloc", "python", sys.maxsize)
            profile._memlab_history = calls
        if getattr(profile, "with_stack", False):
            machine.hide_calls(are_hidden=True)
        start(profile)

    @patches.around(kineto_profiler._KinetoProfile, "stop_trace")
    def stop_trace(stop: Callable[[Any], None], profile: Any) -> None:
        try:
            stop(profile)
        finally:
            machine.hide_calls(are_hidden=False)
            calls = profile.__dict__.pop("_memlab_history", None)
            if calls is not None:
                memory = GPUMemoryProfile(calls["_cuda_memorySnapshot"]())
                calls["_cuda_record_memory_history"](None, None, "python", 1)
                profile._memory_profile = lambda: memory

    # PyTorch's CUDA events each fail with a warning where there is no GPU.
    @patches.around(autograd_profiler.profile, "__init__")
    def without_cuda_events(
        init: Callable[..., None], profile: Any, *args: Any, **kwargs: Any
    ) -> None:
        init(profile, *args, **kwargs)
        kinds: Any = vars(autograd_profiler)["ProfilerState"]
        if getattr(profile, "profiler_kind", None) == kinds.KINETO_GPU_FALLBACK:
            profile.profiler_kind = kinds.KINETO
