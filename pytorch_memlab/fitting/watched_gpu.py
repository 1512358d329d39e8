"""The properties of a GPU that decide what a program does on it, and GPUs where they are equal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, Final

import torch

from .._common.patching.patches import Patches
from ..simulation.inspect import (
    GPU,
    DeviceProperties,
    Machine,
    SimulatedDriver,
    SimulatedGPU,
    decisions,
)

_FIELDS: Final = frozenset(field.name for field in fields(GPU))

_BEHIND: Final = {
    **{name: (name,) for name in _FIELDS},
    "L2_cache_size": ("l2_cache_size",),
    "shared_memory_per_block_optin": ("shared_memory_per_multiprocessor", "major"),
    "uuid": ("name",),
}
"""By a name of ``torch.cuda.get_device_properties``, the properties of ``GPU`` behind it."""

_OF_MEMORY: Final = frozenset({"total", "free_memory", "process_memory"})


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a GPU decides about kernels. See Note [Decisions of a GPU]."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def made_by(self, gpu: GPU) -> Any:
        """The decision of a GPU; equal to nothing else where it cannot decide."""
        try:
            return self.function(gpu, *self.arguments, **dict(self.keywords))
        except Exception:
            return object()


def runs_alike(gpu: GPU, other: GPU, reads: Collection[Any]) -> bool:
    """True if a program does on one GPU what it did on another."""
    # What runs follows from the properties that the program and the simulated kernels read, and
    # from what functions of the GPU decide: where these are equal, the same happens.
    return all(
        read.made_by(gpu) == read.made_by(other)
        if isinstance(read, Decision)
        else getattr(gpu, read) == getattr(other, read)
        for read in reads
    )


class _WatchedGPU(GPU):
    """A GPU that notes reads of its properties; it equals no other, so that no cache answers."""

    __slots__ = ("_read",)

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            super().__getattribute__("_read").add(name)
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class _WatchedProperties(DeviceProperties):
    """The result of ``torch.cuda.get_device_properties``, whose reads are noted one by one."""

    def __getattribute__(self, name: str) -> Any:
        read = super().__getattribute__("__dict__").get("_read")
        if read is not None:
            read.update(_BEHIND.get(name, ()))
        return super().__getattribute__(name)


class _WatchedDriver:
    """The driver of a GPU for everything but its allocator."""

    def __init__(self, driver: SimulatedDriver, read: set[str]) -> None:
        self._driver = driver
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name in _OF_MEMORY:
            self._read.add("total_memory")
        return getattr(self._driver, name)


class GPUReads:
    """The reads and decisions of a GPU since the program began."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._decisions: dict[Decision, Any] = {}
        self._gpu: GPU | None = None
        self._gpus: list[SimulatedGPU] = []
        self._fixed: list[int | None] = []

    def watched(self, gpu: GPU, memory: int | None) -> GPU:
        """An equal GPU whose reads are noted."""
        self._gpu = gpu
        copy: Any = object.__new__(_WatchedGPU)
        object.__setattr__(copy, "_read", self._read)
        for name in _FIELDS:
            object.__setattr__(copy, name, getattr(gpu, name))
        if memory is not None:
            object.__setattr__(copy, "total_memory", memory)
        watched: GPU = copy
        return watched

    def watch(self, machine: Machine, patches: Patches) -> None:
        self._gpus = machine.gpus.copy()
        for gpu in self._gpus:
            driver: Any = _WatchedDriver(gpu.driver, self._read)
            gpu.driver = driver
        cuda: Any = torch.cuda
        properties_of = cuda._get_device_properties

        def watched_properties(device: int) -> DeviceProperties:
            before = self._read.copy()
            own_properties = properties_of(device)
            self._read.intersection_update(before)
            watched: Any = object.__new__(_WatchedProperties)
            vars(watched).update(vars(own_properties), _read=self._read)
            properties: DeviceProperties = watched
            return properties

        patches.set(cuda, "_get_device_properties", watched_properties)
        patches.set(decisions, "watcher", self._decide)
        self._fixed = [gpu.allocator.allowed_bytes for gpu in self._gpus]
        self._read.clear()

    def _decide(
        self,
        function: Callable[..., Any],
        gpu: GPU,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Let the GPU decide, and keep what was asked instead of the properties read for that."""
        inner: Any = vars(function)["__wrapped__"]
        if not isinstance(gpu, _WatchedGPU):
            return inner(gpu, *arguments, **keywords)
        decision = Decision(function, arguments, tuple(keywords.items()))
        if decision not in self._decisions:
            self._decisions[decision] = inner(self._gpu, *arguments, **keywords)
        return self._decisions[decision]

    def all(self) -> frozenset[Any]:
        """Names of the properties that were read so far, and the decisions."""
        read: set[Any] = {*self._read, *self._decisions}
        if [gpu.allocator.allowed_bytes for gpu in self._gpus] != self._fixed:
            read.add("total_memory")  # set_per_process_memory_fraction
        return frozenset(read)
