"""The description of a GPU: what the simulation and ``torch.cuda`` tell programs about it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ..._common.text.prose_size import prose_size
from ..._common.text.quoted import quoted
from ...errors import UnknownGPUError, UsageError
from .sizes import read_size

DEFAULT_GPU: Final = "h100"
"""Name of the GPU that is simulated where none is named."""

_KIB: Final = 1024
_MIB: Final = 1024**2

# Nothing can be allocated below PyTorch's smallest segment, or beyond the 47 bits of address space
# that CUDA's unified addressing shares with the CPU.
_SMALLEST: Final = 2 * _MIB
_LARGEST: Final = 2**47

# Threads and bytes of shared memory per SM, by compute capability: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability".
_SM_LIMITS: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (6, 0): (2048, 64 * _KIB),
    (6, 1): (2048, 96 * _KIB),
    (7, 0): (2048, 96 * _KIB),
    (7, 5): (1024, 64 * _KIB),
    (8, 0): (2048, 164 * _KIB),
    (8, 6): (1536, 100 * _KIB),
    (8, 7): (1536, 164 * _KIB),
    (8, 9): (1536, 100 * _KIB),
    (9, 0): (2048, 228 * _KIB),
    (10, 0): (2048, 228 * _KIB),
    (10, 3): (2048, 228 * _KIB),
    (12, 0): (1536, 100 * _KIB),
    (12, 1): (1536, 100 * _KIB),
}


@dataclass(frozen=True, slots=True, init=False)
class GPU:
    """A GPU to simulate, with the properties that ``torch.cuda.get_device_properties`` gives.

    Args:
        name: as ``torch.cuda.get_device_name`` gives it.
        memory: what ``total_memory`` gives, in bytes or a size such as ``"24GiB"``. It is less
            than the size on the box, because the driver keeps a part.
        compute_capability: major and minor number, such as ``(7, 5)``.
        multiprocessors: number of streaming multiprocessors (SMs). It decides how much memory
            reductions, sorts and attention kernels take.
        threads_per_multiprocessor: threads that one SM holds at once. The default follows the
            compute capability.
        shared_memory_per_multiprocessor: bytes, or a size. The default follows the compute
            capability.
        shared_memory_per_block: bytes, or a size: what a kernel gets without opting in for more.
        l2_cache: bytes, or a size. The default 0 stands for an unknown size.
        context: bytes that the CUDA context takes, or a size. The default is 0: all of ``memory``
            is PyTorch's. ``simulate(context=...)`` overrides it.

    Raises:
        UsageError: an argument cannot be used; the message names it.

    >>> gpu = GPU("Quadro RTX 5000", "16GiB", compute_capability=(7, 5), multiprocessors=48)
    >>> gpu.total_memory, gpu.max_threads_per_multi_processor
    (17179869184, 1024)
    """

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    l2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block: int
    context: int

    def __init__(
        self,
        name: str,
        memory: int | str,
        compute_capability: tuple[int, int],
        multiprocessors: int,
        threads_per_multiprocessor: int | None = None,
        *,
        shared_memory_per_multiprocessor: int | str | None = None,
        shared_memory_per_block: int | str = 48 * _KIB,
        l2_cache: int | str = 0,
        context: int | str = 0,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise UsageError(
                f"name is the GPU's name, such as 'Quadro RTX 5000', not {quoted(name)}"
            )
        capability = _checked_capability(compute_capability)
        limits = _SM_LIMITS.get(capability, (None, None))
        threads, shared_memory = threads_per_multiprocessor, shared_memory_per_multiprocessor
        threads = limits[0] if threads is None else threads
        shared_memory = limits[1] if shared_memory is None else shared_memory
        if threads is None or shared_memory is None:
            raise UsageError(
                f"compute capability {capability[0]}.{capability[1]} is not known: give "
                "threads_per_multiprocessor and shared_memory_per_multiprocessor too"
            )
        values: dict[str, Any] = {
            "name": name,
            "total_memory": checked_memory(read_size("memory", memory), memory),
            "major": capability[0],
            "minor": capability[1],
            "multi_processor_count": _count("multiprocessors", multiprocessors, 1),
            "l2_cache_size": read_size("l2_cache", l2_cache),
            "max_threads_per_multi_processor": _count("threads_per_multiprocessor", threads, 32),
            "shared_memory_per_multiprocessor": read_size(
                "shared_memory_per_multiprocessor", shared_memory
            ),
            "shared_memory_per_block": read_size(
                "shared_memory_per_block", shared_memory_per_block
            ),
            "context": read_size("context", context),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        """Its name, memory, compute capability and multiprocessors."""
        return (
            f"<GPU {self.name}: {prose_size(self.total_memory)}, compute capability"
            f" {self.major}.{self.minor}, {self.multi_processor_count} multiprocessors>"
        )

    def with_memory(self, memory: int | str) -> GPU:
        """The same GPU with more or less memory.

        Args:
            memory: bytes, or a size.

        Raises:
            UsageError: a GPU has no such memory.

        >>> GPU("T4", "15GiB", (7, 5), 40).with_memory("8GiB").total_memory // 2**30
        8
        """
        gpu = copy(self)
        size = checked_memory(read_size("memory", memory), memory)
        object.__setattr__(gpu, "total_memory", size)
        return gpu


def checked_memory(size: int, spec: object) -> int:
    """A size in bytes that a GPU's memory can have."""
    if not _SMALLEST <= size <= _LARGEST:
        lacks_unit = isinstance(spec, str) and spec.strip().isdecimal() and 0 < size < 10_000
        meant = f" (did you mean {size}GiB?)" if lacks_unit else ""
        raise UnknownGPUError(
            f"a GPU has 2 MiB to 128 TiB of memory, not {quoted(spec)}{meant}. "
            "Give a size such as '24GiB', '24GB' (24 * 10**9 bytes) or 25769803776 (bytes)"
        )
    return size


def _checked_capability(capability: object) -> tuple[int, int]:
    if isinstance(capability, (tuple, list)) and len(capability) == 2:
        major, minor = capability
        if _is_int(major) and _is_int(minor) and major > 0 and minor >= 0:
            return major, minor
    raise UsageError(f"compute_capability is two numbers such as (7, 5), not {quoted(capability)}")


def _count(name: str, value: object, least: int) -> int:
    if not _is_int(value) or not least <= value <= 2**20:
        raise UsageError(f"{name} is an int of at least {least}, not {quoted(value)}")
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
