"""The workspaces of cuBLAS: their sizes, and those that exist."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Mapping
from typing import Final

import torch

from ..hardware.decisions import decision, has_major
from ..hardware.gpu import GPU
from .simulated_gpu import Allocation, SimulatedGPU
from .torch_release import RELEASE

_Handle = dict[tuple[str, int], Allocation]
"""The workspaces of a cuBLAS handle on each stream, also as cuBLASLt's."""

# ``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``: ":4096:2:16:8", and
# ":4096:8" from compute capability 9.0 on.
_DEFAULT: Final = 4096 * 1024 * 2 + 16 * 1024 * 8
_LARGE: Final = 4096 * 8 * 1024
_LARGE_GENERATIONS: Final = {9: (2, 6), 10: (2, 6), 11: (2, 15), 12: (2, 6)}
"""Major compute capabilities with the larger default, each with its first release of those that
are supported. Sources that pass workspaces, as 2.15 does, have 11 among them."""

_LAST_RECORDED: Final = 9
"""Major compute capability up to which recordings show a workspace of the default size."""

_CONFIGURED = re.compile(r":([0-9]+):([0-9]+)")

_PASSING_SINCE: Final = (2, 15)


def are_kept(environment: Mapping[str, str]) -> bool:
    """True if a workspace stays once a call needed it; otherwise each call takes its own."""
    # PyTorch kept all of them until release 2.14, and keeps them from 2.15 on (pull request 194311)
    # where TORCH_CUBLAS_WORKSPACE_CACHE is 1.
    return RELEASE < _PASSING_SINCE or environment.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_size(major: int) -> int:
    """Bytes of one cuBLAS workspace, from CUBLAS_WORKSPACE_CONFIG or by default.

    >>> workspace_size(8), workspace_size(9)
    (8519680, 33554432)
    """
    # The rule is that of ``aten/src/ATen/cuda/CublasHandlePool.cpp``: every ``:SIZE:COUNT`` of the
    # variable adds COUNT chunks of SIZE KiB; without any, the GPU's generation decides.
    configured = _configured_size()
    return _default(major) if configured is None else configured


def _configured_size() -> int | None:
    """Bytes of one cuBLAS workspace as CUBLAS_WORKSPACE_CONFIG says; None if it does not."""
    chunks = _CONFIGURED.findall(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * 1024 * int(count) for size, count in chunks) if chunks else None


@decision
def _default_size(gpu: GPU) -> int:
    """Bytes of one cuBLAS workspace where nothing is configured."""
    return _default(gpu.major)


def _default(major: int) -> int:
    since = _LARGE_GENERATIONS.get(major)
    return _DEFAULT if since is None or since > RELEASE else _LARGE


def _is_recorded(gpu: GPU) -> bool:
    """True if recordings show what a workspace takes: the default, up to Hopper."""
    return _configured_size() is None and has_major(gpu, 0, _LAST_RECORDED)


class _Window:
    """The handles that one thread holds: they go back to the pool when it ends."""

    def __init__(self, pool: dict[int, list[_Handle]]) -> None:
        self._pool = pool
        self._held: dict[int, _Handle] = {}

    def handle(self, gpu: int) -> _Handle:
        handle = self._held.get(gpu)
        if handle is None:
            free = self._pool.setdefault(gpu, [])
            handle = self._held[gpu] = free.pop() if free else {}
        return handle

    def __del__(self) -> None:
        for gpu, handle in self._held.items():
            self._pool[gpu].append(handle)


class _ThisThread(threading.local):
    def __init__(self, pool: dict[int, list[_Handle]]) -> None:
        self.window = _Window(pool)


class Workspaces:
    """The cuBLAS workspaces of all GPUs: one for each thread and stream, where they are kept."""

    # On CUDA the nodes of a backward pass run in a thread of their own for each GPU, so a program
    # that trains has two workspaces.

    def __init__(self) -> None:
        self._pool: dict[int, list[_Handle]] = {}
        self._autograd = _Window(self._pool)
        self._this_thread = _ThisThread(self._pool)
        self._made: list[tuple[_Handle, tuple[str, int]]] = []
        self.chosen_size: int | None = None
        """Bytes of each, as the program set it while it runs; None: as `workspace_size` says."""
        self.chosen_lt_size: int | None = None
        """The same of cuBLASLt, where its workspaces are separate ones."""

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """The environment at the first product: PyTorch reads most of its variables once."""
        # ``isCUDABlasWorkspaceCachingEnabled`` in ``CublasHandlePool.cpp`` has a static variable,
        # as the functions beside it have. CUBLAS_WORKSPACE_CONFIG is read for each workspace.
        return dict(os.environ)

    def need(self, gpu: SimulatedGPU, stream: int) -> int:
        """Make the workspace of this thread and stream, or one for a call that ends at once."""
        key = ("cuBLAS", stream)
        before = self._of_thread(gpu).get(key)
        if before is not None and self.chosen_size in (None, before.nbytes):
            return 0
        is_estimate = self.chosen_size is None and not _is_recorded(gpu.model)
        if are_kept(self.environment):
            return self._make(gpu, key, self.size(gpu), is_estimate=is_estimate)
        workspace = gpu.allocate(self.size(gpu), stream, is_estimate=is_estimate)
        gpu.release(workspace)
        return workspace.nbytes if is_estimate else 0

    def need_cublaslt(self, gpu: SimulatedGPU, stream: int, size: int) -> int:
        """Make cuBLASLt's own workspace of this thread and stream, if it does not exist yet."""
        key = ("cuBLASLt", stream)
        return 0 if key in self._of_thread(gpu) else self._make(gpu, key, size, is_estimate=True)

    def _make(
        self, gpu: SimulatedGPU, key: tuple[str, int], size: int, *, is_estimate: bool
    ) -> int:
        workspaces = self._of_thread(gpu)
        before = workspaces.get(key)
        allocation = gpu.allocate(size, key[1], is_estimate=is_estimate)
        try:
            workspaces[key] = allocation
            if before is None:
                self._made.append((workspaces, key))
        except BaseException:
            workspaces.pop(key, None)
            gpu.release(allocation)
            raise
        if before is not None:
            gpu.release(before)
        return size if is_estimate else 0

    def size(self, gpu: SimulatedGPU) -> int:
        """Bytes of the workspaces that are made from now on."""
        if self.chosen_size is not None:
            return self.chosen_size
        configured = _configured_size()
        return _default_size(gpu.model) if configured is None else configured

    def living(self) -> list[Allocation]:
        return [workspaces[key] for workspaces, key in self._made]

    def clear(self) -> None:
        """Give all workspaces back, as ``torch._C._cuda_clearCublasWorkspaces`` does."""
        while self._made:
            workspaces, key = self._made.pop()
            allocation = workspaces.pop(key)
            allocation.gpu.release(allocation)

    def clear_stream(self, gpu: SimulatedGPU, stream: int) -> None:
        """Give the workspaces of a stream back, as the reset of a graph that it captured does."""
        kept: list[tuple[_Handle, tuple[str, int]]] = []
        for workspaces, key in self._made:
            if key[1] == stream and workspaces[key].gpu is gpu:
                gpu.release(workspaces.pop(key))
            else:
                kept.append((workspaces, key))
        self._made = kept

    def _of_thread(self, gpu: SimulatedGPU) -> _Handle:
        in_backward = torch._C._current_autograd_node() is not None
        window = self._autograd if in_backward else self._this_thread.window
        return window.handle(gpu.index)
