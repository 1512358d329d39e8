"""The door to the simulation for the rest of the package, next to ``simulate`` and ``replay``.

Names load when they are first used: to ask whether a simulation is on loads no torch. ``history/``
may import ``allocator`` as well, which is a library by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .machine import active as active

if TYPE_CHECKING:
    from .allocator.driver import SimulatedDriver as SimulatedDriver
    from .allocator.generations import Generation as Generation, Generations as Generations
    from .allocator.out_of_memory import (
        NO_PRIVATE_MEMORY as NO_PRIVATE_MEMORY,
        FailedRequest as FailedRequest,
        FreeBlock as FreeBlock,
        PrivateMemory as PrivateMemory,
    )
    from .allocator.settings import (
        AllocatorSettings as AllocatorSettings,
        read_alloc_conf as read_alloc_conf,
        split_settings as split_settings,
    )
    from .child_processes.start import (
        more_gpus_for_processes as more_gpus_for_processes,
        not_simulated as not_simulated,
    )
    from .hardware import decisions as decisions
    from .hardware.gpu import DEFAULT_GPU as DEFAULT_GPU, GPU as GPU
    from .hardware.nccl_memory import (
        Bounds as Bounds,
        Communicator as Communicator,
        nccl_memory as nccl_memory,
    )
    from .hardware.presets import PRESETS as PRESETS, find_gpu as find_gpu
    from .hardware.sizes import checked_size as checked_size, read_size as read_size
    from .machine.adoption import adopt as adopt
    from .machine.allocation_log import LoggedBlock as LoggedBlock
    from .machine.approximations import OpApproximations as OpApproximations
    from .machine.assumed_sizes import SIZED_OPS as SIZED_OPS, AssumedSizes as AssumedSizes
    from .machine.cublas_workspaces import workspace_size as workspace_size
    from .machine.device_properties import DeviceProperties as DeviceProperties
    from .machine.expert_routing import ExpertGroup as ExpertGroup, ExpertRouting as ExpertRouting
    from .machine.kept_files import KeptFiles as KeptFiles
    from .machine.machine import Machine as Machine
    from .machine.runtime_settings import settings_string as settings_string
    from .machine.simulated_gpu import (
        MemoryOverhead as MemoryOverhead,
        SimulatedFailure as SimulatedFailure,
        SimulatedGPU as SimulatedGPU,
        allocator_is_busy as allocator_is_busy,
    )
    from .machine.tensor_values import DataDependentReads as DataDependentReads
    from .ops.attention import sdp_backend
    from .torch_api.distributed import peers as peers

    attention_backends = sdp_backend

_HOMES = {
    "allocator.driver": ("SimulatedDriver",),
    "allocator.generations": ("Generation", "Generations"),
    "allocator.out_of_memory": ("NO_PRIVATE_MEMORY", "FailedRequest", "FreeBlock", "PrivateMemory"),
    "allocator.settings": ("AllocatorSettings", "split_settings", "read_alloc_conf"),
    "child_processes.start": ("more_gpus_for_processes", "not_simulated"),
    "hardware.gpu": ("DEFAULT_GPU", "GPU"),
    "hardware.nccl_memory": ("Bounds", "Communicator", "nccl_memory"),
    "hardware.presets": ("PRESETS", "find_gpu"),
    "hardware.sizes": ("checked_size", "read_size"),
    "machine.adoption": ("adopt",),
    "machine.allocation_log": ("LoggedBlock",),
    "machine.assumed_sizes": ("AssumedSizes", "SIZED_OPS"),
    "machine.approximations": ("OpApproximations",),
    "machine.cublas_workspaces": ("workspace_size",),
    "machine.tensor_values": ("DataDependentReads",),
    "machine.device_properties": ("DeviceProperties",),
    "machine.expert_routing": ("ExpertGroup", "ExpertRouting"),
    "machine.kept_files": ("KeptFiles",),
    "machine.machine": ("Machine",),
    "machine.runtime_settings": ("settings_string",),
    "machine.simulated_gpu": (
        "MemoryOverhead",
        "SimulatedFailure",
        "SimulatedGPU",
        "allocator_is_busy",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "attention_backends": "ops.attention.sdp_backend",
    "decisions": "hardware.decisions",
    "peers": "torch_api.distributed.peers",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(f".{_MODULES[name]}", __package__)
    elif name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __package__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
