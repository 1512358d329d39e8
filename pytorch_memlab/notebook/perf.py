"""Linux ``perf stat`` during a cell: the number of events of the processor per second.

``python -m pytorch_memlab.notebook.perf [EVENT]`` tries whether it counts on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from typing import Final

INTERVAL_MS: Final = 100
PAUSE_SECONDS: Final = 0.3
TRIAL_SECONDS: Final = 1.0


def parse_sample(line: str) -> float | None:
    """The count in a line of ``perf stat -I``; None for a heading, or if perf could not count."""
    fields = line.split()
    if len(fields) < 3 or fields[0].startswith("#"):
        return None
    try:
        float(fields[0])
        return float(fields[1].replace(",", ""))
    except ValueError:
        return None


def summary(event: str, samples: list[float]) -> str:
    """The sentence on the samples of a cell, one for each 100 ms."""
    if not samples:
        return f"perf has no value for {event}"
    per_second = sum(samples) / len(samples) * 1000 / INTERVAL_MS
    return f"perf value for {event} averages to {per_second:,.0f}/second, raw samples: {samples}"


class PerfStat:
    """A ``perf stat`` of this process, from now on, of an event such as ``cache-misses``."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._began = time.perf_counter()
        command = ["perf", "stat", "--pid", str(os.getpid()), "--event", event]
        command += ["-I", str(INTERVAL_MS)]
        print("run_capture_perf running:", *command)
        # A file, since perf would wait for a reader once a pipe is full.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open until perf has ended
        self._process = subprocess.Popen(command, stderr=self._output)

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("perf") is not None

    def stop(self) -> str:
        """End; the sentence on the counts. A short cell waits for a first sample."""
        if time.perf_counter() - self._began < INTERVAL_MS / 1000:
            print(f"PAUSING to get perf sample for {PAUSE_SECONDS}s")
            time.sleep(PAUSE_SECONDS)
        self._process.terminate()
        self._process.wait()
        with self._output as output:
            output.seek(0)
            counts = [parse_sample(line) for line in output]
        return summary(self._event, [count for count in counts if count is not None])


def main(arguments: list[str] | None = None) -> int:
    """Count an event while a second of work runs; 1 where ``perf`` is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m pytorch_memlab.notebook.perf",
        description="Try whether Linux' perf stat counts an event on this machine.",
    )
    parser.add_argument("event", nargs="?", default="cache-misses", help="as perf list names it")
    event = parser.parse_args(arguments).event
    if not PerfStat.is_installed():
        print("perf is not installed: it comes with the package linux-perf or linux-tools")
        return 1
    counter = PerfStat(event)
    end = time.perf_counter() + TRIAL_SECONDS
    while time.perf_counter() < end:
        sum(range(10_000))
    print(counter.stop())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
