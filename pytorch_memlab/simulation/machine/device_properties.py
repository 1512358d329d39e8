"""The properties of simulated GPUs as ``torch.cuda`` gives them, and which GPUs a program sees."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

from .refused_calls import unsupported
from .simulated_gpu import SimulatedGPU

_OF_THE_MODEL = (
    *("name", "major", "minor", "total_memory", "multi_processor_count"),
    *("max_threads_per_multi_processor", "shared_memory_per_multiprocessor"),
    "shared_memory_per_block",
)
_UNKNOWN = frozenset({"clock_rate", "memory_clock_rate", "memory_bus_width", "gcnArchName"})


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of one GPU, under CUDA's names, sizes in bytes."""

    name: str  # of the GPU
    major: int  # of its compute capability
    minor: int  # of its compute capability
    total_memory: int  # its capacity
    multi_processor_count: int  # number of its streaming multiprocessors
    L2_cache_size: int  # of the whole GPU
    max_threads_per_multi_processor: int  # how many threads one runs
    shared_memory_per_multiprocessor: int  # of one multiprocessor
    shared_memory_per_block: int  # what a kernel gets that asks for no more
    shared_memory_per_block_optin: int  # what a kernel gets at most
    uuid: uuid.UUID  # made up from name and index, always the same
    pci_bus_id: int  # made up: the index
    regs_per_multiprocessor: int = 65536  # registers of 32 bits
    max_threads_per_block: int = 1024  # how many threads a block has at most
    warp_size: int = 32  # threads of a warp
    pci_device_id: int = 0  # made up
    pci_domain_id: int = 0  # made up
    is_integrated: int = 0  # never
    is_multi_gpu_board: int = 0  # never

    @classmethod
    def of(cls, gpu: SimulatedGPU) -> DeviceProperties:
        return cls(
            **{name: getattr(gpu.model, name) for name in _OF_THE_MODEL},
            L2_cache_size=gpu.model.l2_cache_size,
            shared_memory_per_block_optin=_largest_block(gpu),
            uuid=uuid_of(gpu),
            pci_bus_id=gpu.index,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )

    def __getattr__(self, name: str) -> Any:
        if name in _UNKNOWN:
            raise unsupported(f"torch.cuda.get_device_properties().{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def uuid_of(gpu: SimulatedGPU) -> uuid.UUID:
    """A GPU's identifier, which is made up from its name and index."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"simulated:{gpu.model.name}:{gpu.index}")


def _largest_block(gpu: SimulatedGPU) -> int:
    """Bytes that one block can have; CUDA keeps 1 KiB of each for itself from 8.0 on."""
    model = gpu.model
    if model.major < 7:
        return model.shared_memory_per_block
    reserved = 1024 if model.major >= 8 else 0
    return model.shared_memory_per_multiprocessor - reserved


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_count(gpus: list[SimulatedGPU]) -> int:
    """The number of GPUs that the environment lets the program see."""
    # CUDA reads the list up to the first entry that names no GPU; a list that names one twice shows
    # none. All simulated GPUs are alike, so only their number matters.
    text = os.environ.get(VISIBLE_DEVICES)
    if text is None:
        return len(gpus)
    indexes: list[int] = []
    for entry in text.split(","):
        index = _index(entry.strip(), gpus)
        if index is None:
            break
        if index in indexes:
            return 0
        indexes.append(index)
    return len(indexes)


def _index(entry: str, gpus: list[SimulatedGPU]) -> int | None:
    if entry.startswith("GPU-"):
        matches = [gpu.index for gpu in gpus if f"GPU-{uuid_of(gpu)}".startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    if entry.isdecimal() and int(entry) < len(gpus):
        return int(entry)
    return None
