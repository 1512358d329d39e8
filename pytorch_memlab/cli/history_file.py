"""The allocation histories in a file that a command was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytorch_memlab.history.model import AllocationHistory


def read_histories(path: str) -> dict[str, AllocationHistory]:
    """The history in a memory snapshot or a saved profile, by the label of its run.

    The label of a single run is empty.
    """
    from pytorch_memlab.errors import HistoryError
    from pytorch_memlab.history.snapshot import read_snapshot
    from pytorch_memlab.line_profiler.saved_profile import NO_HISTORY, is_saved_profile, load

    if not is_saved_profile(path):
        return {"": read_snapshot(path)}
    found = load(path).recorded().all_histories()
    if not found:
        raise HistoryError(NO_HISTORY)
    return found
