"""Simulation beside recordings of real GPUs: the table in the documentation."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import arguments
from pytorch_memlab.history.recording_comparison import Request, equal_in_order
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import RecordedDriver, Step
from pytorch_memlab.simulation.allocator.events import GROWTH
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings
from pytorch_memlab.utils import readable_size

ROOT = Path(__file__).parent.parent
RECORDINGS = ROOT / "test" / "data" / "recordings"
HEAD = (
    "recording",
    "allocations and frees equal, in order",
    "peak of active bytes: recorded, simulated",
    "differs by",
    "peak of reserved bytes: recorded, simulated",
    "differs by",
)

Peaks = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A recording and its simulation.

    Args:
        name: of the recording.
        equal: allocations and frees of the same size, in the same order.
        total: how many the longer of both has; 0 if the recording has more than the program, so
            that peaks alone are compared.
        recorded: peaks of active and of reserved bytes on the GPU.
        simulated: the same under simulation.
    """

    name: str
    equal: int
    total: int
    recorded: Peaks
    simulated: Peaks

    def cells(self) -> list[str]:
        """The row of the table."""
        equal = f"{self.equal:,} of {self.total:,}" if self.total else "the compiler is in it"
        cells = [f"`{self.name}`", equal]
        for recorded, simulated in zip(self.recorded, self.simulated, strict=True):
            cells.append(f"{readable_size(recorded)}, {readable_size(simulated)}")
            cells.append(_percent(recorded, simulated))
        return cells


def _percent(recorded: int, simulated: int) -> str:
    if recorded == simulated:
        return "0"
    return f"{100 * (simulated - recorded) / recorded:+.4f}%"


def compare(name: str, trace: dict[str, Any]) -> Comparison | None:
    """Simulate the program of a recording.

    Returns:
        both beside each other, None if there is no program.
    """
    catalogue = importlib.import_module("recorded_programs.catalogue")
    streams = importlib.import_module("recorded_programs.streams")
    found = catalogue.program_of(name, trace.get("versions", {}).get("gpu", "h100"))
    if found is None:
        return None
    gpu, program = found
    options = catalogue.OPTIONS.get(name, {})
    events, stats, _ = streams.simulate_recorded(gpu, program, trace, compute=False, **options)
    ours = [Request(kind, size) for kind, _, size in events]
    theirs = [Request(kind, size) for kind, _, size in streams.recorded_events(trace)]
    return Comparison(
        name,
        equal_in_order(theirs, ours),
        0 if name in catalogue.COMPILED else max(len(theirs), len(ours)),
        recorded_peaks(trace, streams.adopt),
        _peaks(stats),
    )


def recorded_peaks(trace: dict[str, Any], adopt: Any) -> Peaks:
    """Peaks of active and reserved bytes while a recording is replayed block for block."""
    driver = RecordedDriver()
    settings = AllocatorSettings.parse(trace["settings"].get("PYTORCH_CUDA_ALLOC_CONF") or "")
    allocator = CachingAllocator(driver, settings, order_by_address=True)
    for segment in trace["initial"]:
        adopt(allocator, segment)
    allocator.reset_peak_stats()
    frees_segments = False
    for index, (kind, address, size, *_) in enumerate(trace["events"]):
        if kind == "segment_free" and not frees_segments:
            allocator.empty_cache()
            if index == 0:  # the recorded program's own, before what is simulated begins
                allocator.reset_peak_stats()
        elif kind in GROWTH:
            driver.expected.append(Step(index, address, size))
        elif kind == "alloc":
            allocator.malloc(size)
        elif kind == "free":
            allocator.free(address)
        frees_segments = kind == "segment_free"
    return _peaks(allocator.memory_stats())


def _peaks(stats: dict[str, Any]) -> Peaks:
    return stats["active_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"]


def recordings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recording, by its name."""
    for path in sorted(RECORDINGS.glob("*.json.gz")):
        with gzip.open(path) as file:
            yield path.name.removesuffix(".json.gz"), json.load(file)


def table(comparisons: Sequence[Comparison], missing: Sequence[str]) -> str:
    """The table as Markdown, and which recordings it lacks."""
    lines = [
        "|" + "|".join(f" {cell} " for cell in row) + "|"
        for row in (HEAD, *(one.cells() for one in comparisons))
    ]
    lines.insert(1, "|" + "---|" * len(HEAD))
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        lines += ["", f"Recordings whose programs are not written yet: {names}."]
    return "\n".join(lines)


def write(text: str, document: Path, part: str = "accuracy") -> None:
    """Put text between the marks of a part of a document.

    Raises:
        ValueError: the marks are not there, once each.
    """
    begin, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    page = document.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{document.name} needs the marks {begin} and {end}, once each")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Compare, print, and write the table of the documentation."""
    sys.path.insert(0, str(ROOT / "test"))
    comparisons, missing = [], []
    for name, trace in recordings():
        comparison = compare(name, trace)
        if comparison is None:
            missing.append(name)
        else:
            comparisons.append(comparison)
            print(*comparison.cells(), sep="  ", flush=True)
    write(table(comparisons, missing), ROOT / "docs" / "simulation" / "accuracy.md")


if __name__ == "__main__":
    arguments(__doc__)
    main()
