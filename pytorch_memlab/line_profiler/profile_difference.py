"""The differences between two profiles, as an object that shows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted
from ..profiles.differences import Differences, compare
from ..profiles.recorded import RecordedProfile
from ..render import differences

if TYPE_CHECKING:
    import pandas as pd

_ROWS: Final = 10
"""Lines of each of the lists, as ``pytorch-memlab diff`` shows them."""


class ProfileDifference:
    """The differences between two profiles: a table in a notebook, text with ``print``.

    Attributes:
        differences: the same as data.
    """

    def __init__(self, before: RecordedProfile, after: RecordedProfile) -> None:
        self._profiles = before, after
        self.differences: Differences = compare(before, after)

    def to_dataframe(self) -> pd.DataFrame:
        """A row for each line whose bytes changed.

        Returns:
            The columns ``function``, ``line``, ``code`` and ``device``, and the bytes
            ``kept_before``, ``kept_after`` (of a hit, calls included), ``self_before``,
            ``self_after`` (added by a hit, without called functions), ``peak_before`` and
            ``peak_after``.
        """
        import pandas as pd

        columns = ("function", "line", "code", "device")
        kinds = {"kept": "kept", "self": "own", "peak": "peak"}
        sizes = [f"{name}_{when}" for name in kinds for when in ("before", "after")]
        rows = [
            (
                *(line.function.qual_name, line.line),
                *(line.function.text_of(line.line).strip(), line.device),
                *(
                    size
                    for name in kinds.values()
                    for change in [getattr(line, name)]
                    for size in (change.before, change.after)
                ),
            )
            for line in self.differences.lines
            if line.kept.growth or line.own.growth or line.peak.growth
        ]
        return pd.DataFrame(rows, columns=[*columns, *sizes])

    def __repr__(self) -> str:
        changes = [
            f"{device.name} peak {differences.change_of(device.active.growth)}"
            for device in self.differences.devices
        ]
        all_differences = self.differences
        lines = len(
            {
                (id(change.function), change.line)
                for change in (*all_differences.own(), *all_differences.peaks())
            }
        )
        changes.append(f"{counted(lines, 'line')} changed")
        return f"<{type(self).__name__}: {', '.join(changes)}>"

    def __str__(self) -> str:
        """The text of ``pytorch-memlab diff``."""
        names = ("before", "after")
        return differences.text(names, *self._profiles, self.differences, _ROWS).rstrip("\n")

    def _repr_html_(self) -> str:
        return differences.fragment(*self._profiles, self.differences, _ROWS)
