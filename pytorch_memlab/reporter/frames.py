"""Reports as pandas DataFrames; pandas loads when the first one is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from .differences import Difference
    from .snapshot import MemorySnapshot


def snapshot_frame(snapshot: MemorySnapshot) -> pd.DataFrame:
    """One row per row of a snapshot."""
    import pandas as pd

    rows = snapshot.rows
    return pd.DataFrame(
        {
            "device": _texts([str(row.device) for row in rows]),
            "name": _texts([row.name for row in rows]),
            "category": _texts([row.category for row in rows]),
            "size": pd.Series([row.size for row in rows], dtype="object"),
            "numel": _ints([row.numel for row in rows]),
            "dtype": _texts([row.dtype for row in rows]),
            "bytes": _ints([row.nbytes for row in rows]),
            "memory": _ints([row.memory for row in rows]),
            "shares": _texts([row.shares for row in rows]),
            "saved_by": _texts([row.saved_by for row in rows]),
            "file": _texts([row.line and row.line.filename for row in rows]),
            "line": pd.array([row.line and row.line.line for row in rows], dtype="Int64"),
        }
    )


def difference_frame(difference: Difference) -> pd.DataFrame:
    """One row per name that differs."""
    import pandas as pd

    changes = difference.changes
    return pd.DataFrame(
        {
            "device": _texts([change.device for change in changes]),
            "name": _texts([change.name for change in changes]),
            "kind": _texts([change.kind for change in changes]),
            "before": _ints([change.before for change in changes]),
            "after": _ints([change.after for change in changes]),
            "delta": _ints([change.delta for change in changes]),
        }
    )


def _ints(values: list[int]) -> pd.Series[int]:
    import pandas as pd

    return pd.Series(values, dtype="int64")


def _texts(values: Sequence[str | None]) -> pd.Series[str]:
    import pandas as pd

    return pd.Series(list(values), dtype="object")
