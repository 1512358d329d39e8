"""The cost of an out-of-memory report on a crowded heap, and of its log at an allocation."""

from __future__ import annotations

import json
import time

import torch

from benchmarks.timing import arguments, heading, in_own_process, row

OBJECTS = 5_000_000
TENSORS = 20_000
TARGET = 1.0
REPEATS = 3


def measure() -> dict[str, float]:
    """Least seconds of a report, and seconds that the log adds to an allocation with its free."""
    from pytorch_memlab import simulate

    heap = [[number] for number in range(OBJECTS)]
    with simulate("1GiB"):
        tensors = [torch.ones(4, device="cuda") for _ in range(TENSORS)]
        times = [_seconds_of_report() for _ in range(REPEATS)]
    del heap, tensors
    return {"report": min(times), "log": _log()}


def _seconds_of_report() -> float:
    from pytorch_memlab._common.process.uncaught_errors import uncaught

    try:
        torch.ones(2**30, device="cuda")
    except torch.OutOfMemoryError as error:
        begun = time.perf_counter()
        report = uncaught.add(error)
        seconds = time.perf_counter() - begun
        assert report is not None
        assert "Out of memory" in report.text
    return seconds


def _log() -> float:
    from pytorch_memlab.simulation.machine.allocation_log import AllocationLog

    log = AllocationLog()
    count = 100_000
    begun = time.perf_counter()
    for number in range(count):
        log.allocated(2**44 + 512 * number, 512, 512, 0)
        log.freed(2**44 + 512 * number, waits=False)
    return (time.perf_counter() - begun) / count


def main() -> None:
    heading(f"out-of-memory report: {OBJECTS:,} Python objects, {TENSORS:,} tensors on the GPU")
    found = in_own_process("benchmarks.oom_report", ".")
    row("report", found["report"], "s", TARGET)
    row("log of requests and stacks, an allocation and its free", found["log"] * 1e6, "µs")


if __name__ == "__main__":
    if arguments(__doc__):
        print(json.dumps(measure()))
    else:
        main()
