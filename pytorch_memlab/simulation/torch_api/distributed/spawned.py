"""Ranks that a program starts with ``torch.multiprocessing.spawn`` run side by side."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from . import peers


def replaced() -> tuple[Any, Any]:
    """Give the processes that are started together a store for what they send each other."""
    module = importlib.import_module("torch.multiprocessing.spawn")
    stores: list[Any] = []  # while the simulation lasts; the processes may end later than the call
    original = module.start_processes

    def start_processes(
        fn: Callable[..., None], args: Any = (), nprocs: int = 1, *rest: Any, **options: Any
    ) -> Any:
        if nprocs < 2:
            return original(fn, args, nprocs, *rest, **options)
        stores.append(peers.make_store())
        before = os.environ.get(peers.VARIABLE)
        os.environ[peers.VARIABLE] = peers.address(
            stores[-1].port, "spawned", range(nprocs), (), world_size=nprocs
        )
        try:
            return original(fn, args, nprocs, *rest, **options)
        finally:
            if before is None:
                del os.environ[peers.VARIABLE]
            else:
                os.environ[peers.VARIABLE] = before

    return original, start_processes
