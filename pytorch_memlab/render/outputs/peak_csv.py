"""The holders of a peak as comma-separated values."""

from __future__ import annotations

import csv
from dataclasses import astuple, fields, replace
from io import StringIO

from ..output_format import OutputFormat, PeakResults


class PeakRows(OutputFormat[PeakResults]):
    """The parts of some peaks, whose sizes in bytes add up to each peak."""

    shows = PeakResults
    endings = (".csv",)
    order = 4
    has_rows = True

    def render(self, results: PeakResults) -> str:
        from ..._common.text.shared_paths import shown
        from ...history.holders import Holder, Share
        from ..peak import parts

        kind = Holder if results.by in ("line", "function") else Share
        output = StringIO()
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(["device", *(field.name for field in fields(kind))])
        for holders in results.peaks:
            peak = holders.peak
            for row in parts(holders, results.by):
                if isinstance(row, Holder):
                    row = replace(row, file=shown(row.file))
                writer.writerow([peak.name if peak.run else peak.device, *astuple(row)])
        return output.getvalue().encode("utf-8", "replace").decode()
