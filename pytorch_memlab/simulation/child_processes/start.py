"""Processes that a simulated program starts: each is simulated too, with its own GPUs.

A forked process is a copy, and its simulation with it. A process that starts a new Python finds
``child_site`` on ``PYTHONPATH``, and in it a ``sitecustomize`` that reads the settings from an
environment variable and begins to simulate once torch is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from typing import Any

from ..._common.patching.patches import Patches
from ..hardware.gpu import GPU

VARIABLE = "PYTORCH_MEMLAB_SIMULATE"
_PATH = "PYTHONPATH"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child_site")
_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_FORK_SERVER_CALLS = (
    "ensure_running",
    "get_inherited_fds",
    "connect_to_new_process",
    "set_forkserver_preload",
)


@contextmanager
def simulated(gpu: GPU, options: Mapping[str, Any]) -> Iterator[None]:
    """Simulate what is started while this lasts."""
    settings = {"package": _PACKAGE, "gpu": _described(gpu), "options": dict(options)}
    before = os.environ.get(VARIABLE)
    is_first = _FOLDER not in os.environ.get(_PATH, "").split(os.pathsep)
    try:
        os.environ[VARIABLE] = json.dumps(settings)
        if is_first:
            os.environ[_PATH] = os.pathsep.join(filter(None, [_FOLDER, os.environ.get(_PATH)]))
        with _fork_server():
            yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        if is_first:
            _leave_path()


@contextmanager
def more_gpus_for_processes(count: int) -> Iterator[None]:
    """Let processes that start within this have so many GPUs, if they are simulated with fewer."""
    before = os.environ.get(VARIABLE)
    if before is None:
        yield
        return
    settings = json.loads(before)
    settings["options"]["count"] = max(settings["options"]["count"], count)
    os.environ[VARIABLE] = json.dumps(settings)
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def not_simulated(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that begins to simulate by itself, or does not."""
    return {key: value for key, value in environment.items() if key != VARIABLE}


def _described(gpu: GPU) -> dict[str, Any]:
    """The arguments that make an equal GPU in another process."""
    return {
        "name": gpu.name,
        "memory": gpu.total_memory,
        "compute_capability": (gpu.major, gpu.minor),
        "multiprocessors": gpu.multi_processor_count,
        "threads_per_multiprocessor": gpu.max_threads_per_multi_processor,
        "shared_memory_per_multiprocessor": gpu.shared_memory_per_multiprocessor,
        "shared_memory_per_block": gpu.shared_memory_per_block,
        "l2_cache": gpu.l2_cache_size,
        "context": gpu.context,
    }


def _leave_path() -> None:
    folders = os.environ.get(_PATH, "").split(os.pathsep)
    kept = os.pathsep.join(folder for folder in folders if folder != _FOLDER)
    if kept:
        os.environ[_PATH] = kept
    else:
        os.environ.pop(_PATH, None)


@contextmanager
def _fork_server() -> Iterator[None]:
    """A new fork server: one that runs already is not simulated."""
    server: Any = forkserver.ForkServer()
    patches = Patches()
    running: Any = vars(forkserver)["_forkserver"]
    server._preload_modules = running._preload_modules
    server._inherited_fds = running._inherited_fds  # of this process, if it was forked by one
    patches.set(forkserver, "_forkserver", server)
    for name in _FORK_SERVER_CALLS:
        patches.set(forkserver, name, getattr(server, name))
    try:
        yield
    finally:
        patches.undo()
        if server._forkserver_alive_fd is not None:
            with suppress(OSError):
                os.close(server._forkserver_alive_fd)  # the server ends once its children have
