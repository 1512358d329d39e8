"""``torch.distributed`` with NCCL under simulation: this process is one rank of many."""

from __future__ import annotations

import functools
import os
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .machine import HOST

if TYPE_CHECKING:
    from .machine import Machine
    from .patches import Patches

_NCCL_VERSION = 2 << 32 | 29 << 16 | 7
"""2.29.7, which torch 2.13.0+cu130 is installed with."""


def install(machine: Machine, patches: Patches) -> None:
    """Let groups with NCCL be made without NCCL and without other processes, until undone.

    Rank and number of ranks are those that the program gives, or ``RANK`` and ``WORLD_SIZE`` of
    the environment, as ``torchrun`` sets them. Groups with ``gloo`` alone stay real.

    Args:
        machine: the simulated machine.
        patches: who puts the originals back.
    """
    if not dist.is_available():
        return
    from .collectives import SimulatedNCCL

    c10d = dist.distributed_c10d
    initialize = _initializer(dist.init_process_group)
    for module in (dist, c10d):
        patches.set(module, "is_nccl_available", lambda: True)
        patches.set(module, "ProcessGroupNCCL", SimulatedNCCL)
        patches.set(module, "init_process_group", initialize)
    patches.set(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    patches.set(dist, "Reducer", _reducer(machine))
    patches.set(torch._C, "_nccl_version", lambda: _NCCL_VERSION)
    patches.set(torch._C, "_nccl_version_suffix", lambda: b"")


def _initializer(original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if backend is not None and "nccl" not in str(backend).lower():
            original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)
            return
        if store is None:
            store = vars(dist)["HashStore"]()
            rank = _from_environment("RANK") if rank < 0 else rank
            world_size = _from_environment("WORLD_SIZE") if world_size < 0 else world_size
        warnings.warn(
            f"one rank of {world_size} is simulated: the others are taken to hold what this one "
            "holds, and NCCL's own buffers are not counted",
            stacklevel=2,
        )
        original("nccl", None, timeout, world_size, rank, store, *args, **kwargs)

    return init_process_group


def _from_environment(name: str) -> int:
    try:
        return int(os.environ[name])
    except KeyError:
        raise ValueError(
            f"environment variable {name} expected, but not set; a simulated rank needs RANK and "
            "WORLD_SIZE, such as RANK=0 WORLD_SIZE=8"
        ) from None


def _reducer(machine: Machine) -> type:
    base: Any = vars(dist)["Reducer"]

    class Reducer(base):  # type: ignore[misc]
        """Makes the buckets of ``DistributedDataParallel`` where its parameters are.

        C++ makes them with the parameters' options, which say that those are on the host.
        """

        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            place = machine.place_of(parameters[0])
            self._target = None if place == HOST else place
            with machine.thread.making_on(self._target):
                super().__init__(parameters, *args, **kwargs)

        def _rebuild_buckets(self) -> bool:
            with machine.thread.making_on(self._target):
                rebuilt: bool = super()._rebuild_buckets()
            return rebuilt

    return Reducer
