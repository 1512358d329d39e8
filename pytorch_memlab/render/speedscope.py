"""The stacks behind peaks in the file format of the viewer speedscope: a weight in bytes each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._common.version import __version__

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..history.model import Frame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(peaks: Sequence[PeakHolders]) -> str:
    """A profile for each GPU, whose weights add up to its peak."""
    numbers: dict[Frame, int] = {}
    profiles = [_profile(holders, numbers) for holders in peaks]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "exporter": "pytorch_memlab",
            "version": __version__,
            "name": "GPU memory at the peak",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(frame) for frame in numbers]},
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


def _frame(frame: Frame) -> dict[str, object]:
    if not frame.filename:
        return {"name": frame.name}
    return {"name": frame.name, "file": frame.filename, "line": frame.line}
