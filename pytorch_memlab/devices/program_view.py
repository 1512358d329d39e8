"""Functions of torch that answer the program while a tracker owns the peaks of a GPU.

``torch.cuda.max_memory_allocated``, ``memory_stats`` and ``reset_peak_memory_stats`` all come
down to two functions of ``torch._C``, those of ``torch.accelerator`` to two others. They are
replaced while any GPU has a view. A build of torch without CUDA lacks them: there the public ones
of ``torch.cuda`` are replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .._common.patching.patches import Patches
from .device import ProgramView

_PRIVATE = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",  # these two are not in every release
    "_accelerator_resetPeakStats",
)
_PUBLIC = ("memory_stats_as_nested_dict", "reset_peak_memory_stats")


class CounterFunctions(NamedTuple):
    """The functions that read and reset the counters of a GPU, given its index."""

    read: Callable[[int], Any]
    reset_peaks: Callable[[int], Any]


_lock = threading.RLock()
_views: dict[int, ProgramView] = {}
_patches = Patches()
_originals: dict[Callable[..., Any], Callable[[Any], Any]] = {}
"""Torch's own functions by those that are in their place."""


def counter_functions() -> CounterFunctions:
    """Torch's own functions: what stands behind the replacements."""
    private = hasattr(torch._C, _PRIVATE[0])
    owner, names = (torch._C, _PRIVATE[:2]) if private else (torch.cuda, _PUBLIC)
    functions = [getattr(owner, name) for name in names]
    return CounterFunctions(*(_originals.get(function, function) for function in functions))


def install(index: int, view: ProgramView) -> None:
    """Let a view answer for a GPU from now on."""
    with uninterrupted(*STANDARD_SIGNALS), _lock:
        _replace()
        _views[index] = view


def remove(index: int, view: ProgramView) -> None:
    """Let torch answer for a GPU again, if this view answers for it."""
    with uninterrupted(*STANDARD_SIGNALS), _lock:
        if _views.get(index) is view:
            del _views[index]
        if not _views:
            _patches.undo(keeps_later=True)
            _originals.clear()


def _replace() -> None:
    """Put the replacements in; a simulation that began or ended since took them off."""
    targets = [(torch._C, name) for name in _PRIVATE if hasattr(torch._C, name)]
    if not hasattr(torch._C, _PRIVATE[0]):
        targets = [(module, name) for module in (torch.cuda, torch.cuda.memory) for name in _PUBLIC]
    for owner, name in targets:
        original = getattr(owner, name)
        if original not in _originals:
            ours = _through_view(original, resets="reset" in name)
            _originals[ours] = original
            _patches.set(owner, name, ours)


def _through_view(original: Callable[[Any], Any], *, resets: bool) -> Callable[..., Any]:
    def call(device: Any = None) -> Any:
        index = device
        if not isinstance(index, int):
            index = torch.cuda._utils._get_device_index(index, optional=True)
        view = _views.get(index)
        if view is None:
            return original(device)
        with view.lock:
            if resets:
                return None if view.program_resets() else original(device)
            return view.as_program_reads(original(device))

    return call
