"""What the program reads of its own peaks while others own the counters.

``torch.cuda.max_memory_allocated``, ``memory_stats`` and ``reset_peak_memory_stats`` all come
down to two functions of ``torch._C``. While a ledger owns a GPU's peaks these answer for it.
Where a build of torch has no such functions, the public ones of ``torch.cuda`` are replaced.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ledger import Ledger

_lock = threading.Lock()
_ledgers: dict[int, Ledger] = {}
_installed: list[tuple[Any, str, Any, Any]] = []


def install(ledger: Ledger) -> None:
    """Answer for a GPU's peaks from now on.

    Args:
        ledger: of any device; only CUDA has calls of its own to answer.
    """
    kind, _, index = ledger.device.name.partition(":")
    if kind != "cuda":
        return
    with _lock:
        if not _ledgers:
            _replace()
        _ledgers[int(index)] = ledger


def remove(ledger: Ledger) -> None:
    """Let torch answer again.

    Args:
        ledger: as given to ``install``.
    """
    with _lock:
        index = next((i for i, one in _ledgers.items() if one is ledger), None)
        if index is None:
            return
        del _ledgers[index]
        if not _ledgers:
            _put_back()


def _replace() -> None:
    if hasattr(torch._C, "_cuda_memoryStats"):
        targets = [(torch._C, "_cuda_memoryStats"), (torch._C, "_cuda_resetPeakMemoryStats")]
    else:
        names = ("memory_stats_as_nested_dict", "reset_peak_memory_stats")
        targets = [(module, name) for module in (torch.cuda, torch.cuda.memory) for name in names]
    for owner, name in targets:
        original = getattr(owner, name)
        ours = _reset(original) if "reset" in name else _read(original)
        setattr(owner, name, ours)
        _installed.append((owner, name, original, ours))


def _put_back() -> None:
    while _installed:
        owner, name, original, ours = _installed.pop()
        if getattr(owner, name, None) is ours:
            setattr(owner, name, original)


def _ledger_for(device: Any) -> Ledger | None:
    if not isinstance(device, int):
        device = torch.cuda._utils._get_device_index(device, optional=True)
    return _ledgers.get(device)


def _read(original: Callable[[Any], Any]) -> Callable[..., Any]:
    def memory_stats(device: Any = None) -> Any:
        ledger = _ledger_for(device)
        if ledger is None:
            return original(device)
        with ledger.lock:
            stats = original(device)
            return stats if ledger.busy else ledger.as_user_reads(stats)

    return memory_stats


def _reset(original: Callable[[Any], Any]) -> Callable[..., Any]:
    def reset_peak_memory_stats(device: Any = None) -> Any:
        ledger = _ledger_for(device)
        if ledger is None:
            return original(device)
        with ledger.lock:
            if ledger.busy:
                return original(device)
            ledger.user_resets()
            return None

    return reset_peak_memory_stats
