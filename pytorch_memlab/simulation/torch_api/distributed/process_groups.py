"""``torch.distributed`` under simulation: this process is one rank of many."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from ...dispatch.fake_tensors import BUILD_HAS_CUDA
from ...machine import active
from ...machine.machine import Machine
from ...machine.refused_calls import refusal
from . import sharded_tensors

_NCCL_VERSION = 2 << 32 | 29 << 16 | 7  # 2.29.7, which torch 2.13.0+cu130 is installed with


def install(machine: Machine, patches: Patches) -> None:
    """Let process groups be made without NCCL and without other processes, until undone."""
    # Rank and number of ranks are those that the program gives, or ``RANK`` and ``WORLD_SIZE`` of
    # the environment, as ``torchrun`` sets them. Replaced is what ``init_process_group`` and
    # ``new_group`` call, so that it does not matter who holds those under a name of their own.
    if not dist.is_available():
        return
    from . import objects, peers, spawned
    from .nccl_backend import SimulatedGloo, SimulatedNCCL, SimulatedNCCL2
    from .stores import SimulatedFileStore, SimulatedTCPStore

    c10d = dist.distributed_c10d
    for module in (dist, c10d):
        patches.set(module, "is_nccl_available", lambda: True)
        patches.set(module, "ProcessGroupNCCL", SimulatedNCCL)
        patches.set(module, "ProcessGroupGloo", SimulatedGloo)
        if hasattr(c10d, "_create_nccl2_process_group"):  # torch 2.14 and later
            patches.set(module, "ProcessGroupNCCL2", SimulatedNCCL2)
            patches.set(module, "ProcessGroupNCCLLazy", SimulatedNCCL2)
    replaced: list[tuple[Any, Any]] = [
        (SimulatedTCPStore.real, SimulatedTCPStore),
        (SimulatedFileStore.real, SimulatedFileStore),
    ]
    init_rpc = getattr(sys.modules.get("torch.distributed.rpc"), "init_rpc", None)
    if init_rpc is not None:
        refused = refusal("torch.distributed.rpc.init_rpc")
        replaced.append((init_rpc, functools.wraps(init_rpc)(refused)))
    patches.set_by_name(*replaced, *objects.replaced(), spawned.replaced())
    patches.set(c10d, "rendezvous", _rendezvous)
    # The barrier after a group is made, at which the other ranks never arrive.
    patches.set(c10d, "_store_based_barrier", lambda *_arguments, **_options: None)
    # Nothing is split off: from torch 2.14 on, only C++ backends can be.
    patches.set(c10d, "_get_split_source", lambda *_group: None)
    # From torch 2.15 on, collectives are recorded: by groups whose backend is an object of C++.
    patches.set(c10d, "_maybe_attach_flight_recorder", lambda *_arguments: None)
    patches.set(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    objects.install(patches)
    patches.before_undo(peers.leave)
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL it tells in the log what groups of NCCL send.
    patches.set(torch._C._distributed_c10d, "_hash_tensors", _hash_of)
    patches.set(dist, "Reducer", _reducer(machine))
    patches.set(torch._C, "_nccl_version", lambda: _NCCL_VERSION)
    patches.set(torch._C, "_nccl_version_suffix", lambda: b"")
    if not dist.is_initialized():
        patches.before_undo(_destroy_simulated_groups)
    _install_after_imports(patches)


def _install_after_imports(patches: Patches) -> None:
    """Change the modules of ``torch.distributed`` that a program may import later."""
    imports = AfterImport()
    keep_own = functools.partial(_install_checkpoints, patches)
    imports.call("torch.distributed.checkpoint.default_planner", keep_own)
    imports.call(
        "torch.distributed._shard.sharded_tensor.api",
        lambda api: sharded_tensors.install(patches, api, _is_simulated),
    )
    imports.call(
        "torch.distributed._symmetric_memory", functools.partial(_refuse_symmetric_memory, patches)
    )
    imports.call(
        "torch.distributed.pipelining._IR", functools.partial(_install_traced_pipelines, patches)
    )
    imports.call(
        "torch.distributed.tensor.placement_types",
        functools.partial(_install_parts_of_dtensors, patches),
    )
    imports.start()
    patches.before_undo(imports.stop)


_OF_SYMMETRIC_MEMORY = (
    "empty",
    "rendezvous",
    "get_symm_mem_workspace",
    "get_mempool_allocator",
    "get_mem_pool",
)
"""Functions that take memory which other ranks write to, or a pool of it."""


def _install_parts_of_dtensors(patches: Patches, module: Any) -> None:
    from .exchanged_values import scatter_own_parts

    if hasattr(module, "mesh_scatter"):
        patches.around(module, "mesh_scatter")(scatter_own_parts)


def _install_traced_pipelines(patches: Patches, module: Any) -> None:
    """Let ``pipeline`` trace a model on a GPU, in a build of PyTorch without CUDA too."""
    # Gradients of the trace's fake tensors would end the process in such a build
    # (``fake_tensors.check``), so it has none: no stage depends on them.
    trace = module.Pipe._trace_with_export

    @functools.wraps(trace)
    def traced(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if BUILD_HAS_CUDA or not any(map(active.holds, model.parameters())):
            return trace(model, *args, **kwargs)
        with torch.no_grad():
            return trace(model, *args, **kwargs)

    patches.set(module.Pipe, "_trace_with_export", staticmethod(traced))


def _refuse_symmetric_memory(patches: Patches, module: Any) -> None:
    for name in _OF_SYMMETRIC_MEMORY:
        if hasattr(module, name):
            patches.set(module, name, refusal(f"{module.__name__}.{name}"))


def _rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **_options: Any
) -> Iterator[tuple[Any, int, int]]:
    """A store, the rank and the number of ranks, for ``init_process_group``."""
    from .stores import SimulatedStore

    query = dict(parse_qsl(urlparse(url).query))
    yield (
        SimulatedStore(),
        rank if rank >= 0 else _number("RANK", query.get("rank")),
        world_size if world_size >= 0 else _number("WORLD_SIZE", query.get("world_size")),
    )


def _number(name: str, argument: str | None) -> int:
    try:
        return int(os.environ[name] if argument is None else argument)
    except KeyError:
        raise ValueError(
            f"environment variable {name} expected, but not set; a simulated rank needs RANK and "
            "WORLD_SIZE, such as RANK=0 WORLD_SIZE=8"
        ) from None


def _install_checkpoints(patches: Patches, planner: Any) -> None:
    """Let this rank write what it holds to a distributed checkpoint."""
    # The others are taken to hold the same, so the shards that only they have are missing.

    @patches.around(planner, "dedup_save_plans")
    def own_plan(deduplicate: Callable[..., Any], all_plans: list[Any], *options: Any) -> Any:
        if not _is_simulated():
            return deduplicate(all_plans, *options)
        # Only the rank that coordinates a group comes here, the first one unless it is named.
        own = dist.get_rank() if len(all_plans) == dist.get_world_size() else 0
        return [
            plan if index == own else dataclasses.replace(plan, items=[])
            for index, plan in enumerate(all_plans)
        ]

    @patches.around(planner, "_validate_global_plan")
    def validated(validate: Callable[..., Any], plan: Any, metadata: Any) -> Any:
        if not _is_simulated():
            return validate(plan, metadata)
        # a list of errors; in older releases whether there is none
        return inspect.signature(validate).return_annotation in (bool, "bool") or []


def _is_simulated() -> bool:
    from .one_rank import SimulatedGroup

    return isinstance(dist.group.WORLD, SimulatedGroup)


def _destroy_simulated_groups() -> None:
    if _is_simulated():
        dist.destroy_process_group()


def _reducer(machine: Machine) -> type:
    base: Any = vars(dist)["Reducer"]

    class Reducer(base):  # type: ignore[misc]
        """Makes the buckets of ``DistributedDataParallel`` where its parameters are."""

        # C++ makes them with the parameters' options, which say that they are on the CPU.

        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            gpu = machine.gpu_of(parameters[0])
            self._target = None if gpu is None else gpu.device
            with machine.thread.device_override(self._target):
                super().__init__(parameters, *args, **kwargs)

        def _rebuild_buckets(self) -> bool:
            with machine.thread.device_override(self._target):
                rebuilt: bool = super()._rebuild_buckets()
            return rebuilt

    return Reducer


def _hash_of(tensors: list[torch.Tensor]) -> int:
    return hash(tuple(value for tensor in tensors for value in tensor.flatten().tolist()))
