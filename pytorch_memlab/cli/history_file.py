"""The allocation histories in a file that a command was given, and the GPUs of them to show."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytorch_memlab.errors import HistoryError, UsageError

if TYPE_CHECKING:
    from pytorch_memlab.history.model import AllocationHistory


def recorded_gpus(options: argparse.Namespace) -> list[tuple[str, AllocationHistory, int]]:
    """The label of the run (empty for a single run), its history, and a GPU that is asked for."""
    return [
        (run, history, device)
        for run, history in _read_histories(options.file).items()
        for device in recorded_devices(history, options.file, options.device)
    ]


def recorded_devices(history: AllocationHistory, path: str, device: int | None) -> list[int]:
    """The GPU that was asked for, or else all that were used."""
    used = [one.device for one in history.devices if one.events or one.segments]
    if not used:
        raise UsageError(
            f"{path} has no events: record them with torch.cuda.memory._record_memory_history() "
            "before the program allocates"
        )
    if device is None:
        return used
    if device not in [one.device for one in history.devices]:
        known = " or ".join(str(one) for one in used)
        raise UsageError(f"{path} has no GPU {device}: --device takes {known}")
    return [device]


def _read_histories(path: str) -> dict[str, AllocationHistory]:
    """The history in a memory snapshot or a saved profile, by the label of its run."""
    from pytorch_memlab.history.snapshot import read_snapshot
    from pytorch_memlab.line_profiler.saved_profile import NO_HISTORY, is_saved_profile, load

    if not is_saved_profile(path):
        return {"": read_snapshot(path)}
    found = load(path).recorded().all_histories()
    if not found:
        raise HistoryError(NO_HISTORY)
    return found
