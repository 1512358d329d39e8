"""Lending the GPU: everything into host memory, and back."""

from __future__ import annotations

import weakref
from collections import deque
from types import TracebackType

import torch

from .errors import MemlabError
from .tensors.moves import (
    MovedStorage,
    bring_back,
    copy_to_host,
    find_gpu_memory,
    take_away,
    views_in_host_memory,
)
from .utils import readable_size


class Courtesy:
    """Moves all CUDA tensors of this process into host memory for a while.

    It moves storages, so what shared memory shares it again: views, tied weights, optimizer
    state, gradients, and what autograd keeps for a backward that is still to come. Each tensor
    stays the same object. While the memory is lent, a tensor is one of the CPU and can be used
    and changed there; only what a graph that waits for backward, a sparse tensor or the like
    holds stays on its device by name, without memory. In the end all bits are where they were,
    at other addresses: captured CUDA graphs and other libraries' pointers do not follow.

    As a context manager it lends on entry and restores on exit.

    >>> with Courtesy():
    ...     pass  # the GPU is another's
    """

    def __init__(self) -> None:
        self._moved: deque[MovedStorage] = deque()
        self._lent = False

    def yield_memory(self) -> None:
        """Move everything from the GPUs into host memory, and give the GPUs' memory back.

        All or nothing. A second call moves what came to the GPUs since the first.

        Raises:
            MemlabError: the host's memory does not suffice; nothing was moved.
        """
        self._moved.extend(_lend())
        self._lent = True
        if self._moved:
            _clear_workspaces()
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Move everything back where it came from.

        Raises:
            MemlabError: ``yield_memory`` was not called before; or a GPU has no room by now: then
                the rest stays in host memory, and ``restore`` can be called again.
        """
        if not self._lent:
            raise MemlabError("nothing to restore: yield_memory() comes first")
        views = views_in_host_memory() if self._moved else {}
        while self._moved:
            moved = self._moved[0]
            try:
                bring_back(moved, views.get(moved.host._cdata, []))
            except torch.cuda.OutOfMemoryError as error:
                left = readable_size(sum(each.host.nbytes() for each in self._moved))
                raise MemlabError(
                    f"no room on {moved.device}: {left} are still in host memory, safe; "
                    "call restore() again when there is room"
                ) from error
            self._moved.popleft()
        self._lent = False

    def __enter__(self) -> Courtesy:
        self.yield_memory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lent:
            self.restore()


def _clear_workspaces() -> None:
    """Drop what cuBLAS keeps between calls, where torch can: the next call makes it again."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def _lend() -> list[MovedStorage]:
    memory = find_gpu_memory()
    for device in {storage.device for storage in memory.storages}:
        torch.cuda.synchronize(device)
    hosts = _copies(memory.storages)
    moved: list[MovedStorage] = []
    try:
        for storage, host in zip(memory.storages, hosts, strict=True):
            moved.append(MovedStorage(storage.device, host, weakref.ref(storage)))
            take_away(storage, host, memory.views.get(storage._cdata, []))
    except BaseException:
        views = views_in_host_memory()
        for each in moved:
            bring_back(each, views.get(each.host._cdata, []))
        raise
    return moved


def _copies(storages: list[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    """Copies in host memory."""
    try:
        return [copy_to_host(storage) for storage in storages]
    except (RuntimeError, MemoryError) as error:
        size = readable_size(sum(storage.nbytes() for storage in storages))
        raise MemlabError(f"no room for {size} in host memory; nothing was moved") from error
