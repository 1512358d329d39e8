"""The allocation history in a file that a command was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytorch_memlab.history.model import AllocationHistory


def read_history(path: str) -> AllocationHistory:
    """The history in a memory snapshot, or in a saved profile that has one.

    Args:
        path: of the file.

    Raises:
        SnapshotError: it is neither.
        ProfileError: it is a damaged profile.
        HistoryError: it is a profile without a history.
    """
    from pytorch_memlab.history.snapshot import read_snapshot
    from pytorch_memlab.line_profiler.saved_profile import is_saved_profile, load

    return load(path).history() if is_saved_profile(path) else read_snapshot(path)
