"""The cost of a memory report on a crowded heap, and of the original's."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import redirect_stdout

import torch

from benchmarks import original
from benchmarks.timing import arguments, heading, in_own_process, row

OBJECTS = 5_000_000
TENSORS = 20_000
TARGET = 2.0
REPEATS = 3


def measure(path: str) -> dict[str, float]:
    """Least seconds of a report, and of a detailed one where there is such a thing."""
    sys.path.insert(0, path)
    from pytorch_memlab import MemReporter

    heap = [[number] for number in range(OBJECTS)]
    tensors = [torch.ones(4) for _ in range(TENSORS)]
    reporter = MemReporter()
    seconds = {"report": _least(reporter.report)}
    if hasattr(reporter, "snapshot"):
        seconds["details"] = _least(lambda: reporter.report(details=True))
    del heap, tensors
    return seconds


def _least(report: object) -> float:
    assert callable(report)
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        with redirect_stdout(io.StringIO()):
            report()
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> None:
    heading(f"MemReporter: {OBJECTS:,} Python objects, {TENSORS:,} tensors")
    ours = in_own_process("benchmarks.reporter", ".")
    row("report()", ours["report"], "s", TARGET)
    row("report(details=True), with names of variables", ours["details"], "s", TARGET)
    folder = original.fetch()
    if folder:
        theirs = in_own_process("benchmarks.reporter", str(folder))
        row("the original's report()", theirs["report"], "s")


if __name__ == "__main__":
    if given := arguments(__doc__):
        print(json.dumps(measure(*given)))
    else:
        main()
