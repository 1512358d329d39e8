"""Peak holders for other programs: comma-separated values, and the format of speedscope."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from io import StringIO
from typing import TYPE_CHECKING

from .._common.version import __version__
from ..history.holders import Holder, Share
from .peak import parts

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..history.model import Frame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def csv_text(peaks: Sequence[PeakHolders], by: str = "line") -> str:
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


def speedscope(peaks: Sequence[PeakHolders]) -> str:
    """A profile for each GPU, whose weights add up to its peak."""
    numbers: dict[Frame, int] = {}
    profiles = [_profile(holders, numbers) for holders in peaks]
    frames = [
        {"name": one.name, **({"file": one.filename, "line": one.line} if one.filename else {})}
        for one in numbers
    ]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "exporter": "pytorch_memlab",
            "version": __version__,
            "name": "GPU memory at the peak",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        }
    )


def _profile(holders: PeakHolders, numbers: dict[Frame, int]) -> dict[str, object]:
    """The stacks of one GPU, outermost frame first; new frames get the next numbers."""
    stacks = holders.by_stack()
    return {
        "type": "sampled",
        "name": holders.peak.name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": holders.peak.active,
        "samples": [
            [numbers.setdefault(frame, len(numbers)) for frame in reversed(stack)]
            for stack, _ in stacks
        ],
        "weights": [size for _, size in stacks],
    }
