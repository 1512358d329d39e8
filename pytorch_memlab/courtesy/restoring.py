"""All tensors back to the GPUs that they came from, or to another device."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch

from .._common.interrupts.uninterrupted import uninterrupted
from .._common.text.prose_size import counted, prose_size
from ..errors import MemlabError
from ..tensors.moves import (
    MovedStorage,
    Views,
    find_gpu_memory,
    point,
    room,
    view_bases,
    views_in_host_memory,
)
from .chunked_copies import Copies, progress_bar


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """A storage that is being copied to a GPU."""

    moved: MovedStorage
    storage: torch.UntypedStorage | None  # on the GPU; None if nothing refers to it any more
    arrived_at: int  # bytes of all copies, when this one has arrived


def bring_back(moved: deque[MovedStorage]) -> None:
    """Move storages back to the GPUs of their records; a record goes when its tensors follow."""
    if not moved:
        return
    views = views_in_host_memory()
    total = sum(storage.host.nbytes() for storage in moved)
    way: deque[_OnItsWay] = deque()
    full: torch.OutOfMemoryError | None = None
    with progress_bar("host to GPU", total) as arrived, Copies(arrived) as copies:
        for moved_storage in list(moved):
            try:
                storage = room(moved_storage, moved_storage.host._cdata in views)
            except torch.cuda.OutOfMemoryError as error:
                full = error
                break
            arrived_at = (
                copies.copy(moved_storage.host, storage, moved_storage.device) if storage else 0
            )
            way.append(_OnItsWay(moved_storage, storage, arrived_at))
            if way[0].arrived_at <= copies.done:
                _follow(moved, way, copies.done, views)
        copies.wait()
        _follow(moved, way, copies.done, views)
    if full is not None:
        left = prose_size(sum(storage.host.nbytes() for storage in moved))
        raise MemlabError(
            f"no room on {moved[0].device}: {left} are still in host memory, safe; "
            "call restore() again when there is room"
        ) from full


def bring_elsewhere(moved: deque[MovedStorage], device: torch.device) -> None:
    """Move storages from host memory to one device; on the CPU they stay where they are."""
    stuck = _stuck(moved)
    if stuck:
        raise MemlabError(
            f"{counted(stuck, 'tensor')} cannot change device: a graph of autograd, a sparse"
            " tensor or another object in C++ holds them. Finish the step and drop its "
            "results (del loss), or call restore() without a device"
        )
    if device.type == "cpu":
        moved.clear()
        return
    for storage in moved:
        storage.device = device
    bring_back(moved)


def _follow(moved: deque[MovedStorage], way: deque[_OnItsWay], arrived: int, views: Views) -> None:
    """Let the tensors of all storages follow that have arrived."""
    with uninterrupted():
        while way and way[0].arrived_at <= arrived:
            moved_storage, storage = way[0].moved, way[0].storage
            if storage is not None:
                moved_storage.emptied = weakref.ref(storage)
                for tensor in views.get(moved_storage.host._cdata, []):
                    point(tensor, storage)
            moved.popleft()
            way.popleft()


def _stuck(moved: deque[MovedStorage]) -> int:
    """The number of tensors that cannot change their device: other objects refer to them too."""
    views = views_in_host_memory()
    lent = [tensor for storage in moved for tensor in views.get(storage.host._cdata, [])]
    in_graphs = sum(tensor.grad_fn is not None for tensor in lent)
    if not in_graphs:
        _others_follow(moved, lent)
    return in_graphs + sum(storage.emptied() is not None for storage in moved)


def _others_follow(moved: deque[MovedStorage], lent: list[torch.Tensor]) -> None:
    """Point leaves of graphs that have died, and bases of lent views, at host memory."""
    hosts = {
        storage._cdata: moved_storage.host
        for moved_storage in moved
        if (storage := moved_storage.emptied()) is not None
    }
    _, views = find_gpu_memory() if hosts else ([], {})
    leaves = [tensor for key in hosts for tensor in views.get(key, [])]
    for tensor in (*leaves, *view_bases(lent)):
        host = hosts.get(tensor.untyped_storage()._cdata)
        if host is not None:
            point(tensor, host)
