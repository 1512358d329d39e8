"""The time of the tables after many line events."""

from __future__ import annotations

import json
import sys

from benchmarks import original
from benchmarks.gpus import StandInGPU
from benchmarks.line_event import LINES, idle_lines
from benchmarks.timing import MILLISECONDS, arguments, heading, in_own_process, row, seconds

EVENTS = 1_000_000
ORIGINAL_EVENTS = 11_000
"""The original keeps 13 KB for each event, so that a million would take 13 GB."""


def measure(events: str, path: str) -> dict[str, float]:
    """Seconds of the first tables as text, and as HTML, after so many events."""
    StandInGPU().install()
    sys.path.insert(0, path)
    from pytorch_memlab import LineProfiler

    with LineProfiler(idle_lines) as profiler:
        idle_lines(int(events) // LINES, int)
    return {
        "text": seconds(lambda: repr(profiler.display())),
        "html": seconds(lambda: profiler.display()._repr_html_()),
    }


def main() -> None:
    heading("display()")
    ours = in_own_process("benchmarks.display_time", str(EVENTS), ".")
    row(f"text, after {EVENTS:,} events", ours["text"] * MILLISECONDS, "ms", 100)
    row(
        f"HTML, after {EVENTS:,} events, pandas' import included", ours["html"] * MILLISECONDS, "ms"
    )
    folder = original.fetch()
    if folder:
        theirs = in_own_process("benchmarks.display_time", str(ORIGINAL_EVENTS), str(folder))
        row(f"the original's text, after {ORIGINAL_EVENTS:,}", theirs["text"] * MILLISECONDS, "ms")
        row("    times less, after 90 times the events", theirs["text"] / ours["text"], "x")


if __name__ == "__main__":
    if given := arguments(__doc__):
        print(json.dumps(measure(*given)))
    else:
        main()
