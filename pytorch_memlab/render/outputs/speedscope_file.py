"""The holders of a peak in the format of speedscope, a viewer of flame graphs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ..._common.process.version import __version__
from ..._common.text.shared_paths import shown
from ..output_format import OutputFormat, PeakResults

if TYPE_CHECKING:
    from ...history.holders import PeakHolders
    from ...history.model import Frame

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


class SpeedscopeFile(OutputFormat[PeakResults]):
    """A profile for each GPU, whose weights add up to its peak."""

    shows = PeakResults
    endings = (".speedscope.json",)
    order = 2

    def render(self, results: PeakResults) -> str:
        numbers: dict[Frame, int] = {}
        profiles = [_profile(holders, numbers) for holders in results.peaks]
        frames = [
            {"name": frame.name}
            | ({"file": shown(frame.filename), "line": frame.line} if frame.filename else {})
            for frame in numbers
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
