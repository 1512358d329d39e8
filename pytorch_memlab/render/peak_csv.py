"""Peak holders as comma-separated values: a row for each part of each peak."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from io import StringIO
from typing import TYPE_CHECKING

from ..history.holders import Holder, Share
from .peak import parts

if TYPE_CHECKING:
    from ..history.holders import PeakHolders


def render(peaks: Sequence[PeakHolders], by: str = "line") -> str:
    """The parts of some peaks, whose sizes in bytes add up to each peak."""
    kind = Holder if by in ("line", "function") else Share
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["device", *(field.name for field in fields(kind))])
    for holders in peaks:
        peak = holders.peak
        for row in parts(holders, by):
            writer.writerow([peak.name if peak.run else peak.device, *astuple(row)])
    return output.getvalue().encode("utf-8", "replace").decode()
