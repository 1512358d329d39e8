"""What the program reads of its own peaks while others own the counters.

``torch.cuda.max_memory_allocated``, ``memory_stats`` and ``reset_peak_memory_stats`` all come
down to two functions of ``torch._C``, those of ``torch.accelerator`` to two others. While a ledger
owns a GPU's peaks, or awaits its first use, these answer for it. Where a build of torch has no such
functions, the public ones of ``torch.cuda`` are replaced.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ledger import Ledger

_NAMES = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",  # these two are not in every release
    "_accelerator_resetPeakStats",
)

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
    """Put our functions in; a simulation that began or ended since took them off."""
    for owner, name in _targets():
        original = getattr(owner, name)
        if any(original is ours for _, _, _, ours in _installed):
            continue
        ours = _reset(original) if "reset" in name else _read(original)
        setattr(owner, name, ours)
        _installed.append((owner, name, original, ours))


def _targets() -> list[tuple[Any, str]]:
    if not hasattr(torch._C, "_cuda_memoryStats"):
        names = ("memory_stats_as_nested_dict", "reset_peak_memory_stats")
        return [(module, name) for module in (torch.cuda, torch.cuda.memory) for name in names]
    return [(torch._C, name) for name in _NAMES if hasattr(torch._C, name)]


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
            if ledger.busy or not ledger.user_resets():
                return original(device)
            return None

    return reset_peak_memory_stats
