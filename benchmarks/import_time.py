"""The cost of ``import pytorch_memlab`` on top of torch, and what it must not do."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks.timing import MILLISECONDS, arguments, heading, row

PROGRAM = """
import sys, time
begun = time.perf_counter()
import torch
torch_is_there = time.perf_counter()
import pytorch_memlab
done = time.perf_counter()
from pytorch_memlab import LineProfiler, MemReporter, PeakScope, profile, simulate
all_is_there = time.perf_counter()
assert not torch.cuda.is_initialized(), "a CUDA context was made"
times = torch_is_there - begun, done - torch_is_there, all_is_there - torch_is_there
print(*times, file=sys.stderr)
"""


def measure(compiled: str) -> tuple[float, ...]:
    """Seconds of torch, of ``import pytorch_memlab`` after it, and of all that it has.

    Args:
        compiled: folder of the compiled modules.
    """
    # Where PYTHONDONTWRITEBYTECODE is set, every run would compile all modules.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, "PYTHONPYCACHEPREFIX": compiled},
    )
    if done.stdout:
        sys.exit(f"import pytorch_memlab printed {done.stdout!r}")
    return tuple(map(float, done.stderr.split()))


def main() -> None:
    heading("import pytorch_memlab (prints nothing, makes no CUDA context)")
    with tempfile.TemporaryDirectory() as compiled:
        measure(compiled)
        runs = [measure(compiled) for _ in range(7)]
    of_torch, of_package, of_all = (statistics.median(times) for times in zip(*runs, strict=True))
    row("on top of torch", of_package * MILLISECONDS, "ms", 100)
    row(
        "with LineProfiler, MemReporter, PeakScope, simulate used", of_all * MILLISECONDS, "ms", 100
    )
    row("    in parts of `import torch`", of_all / of_torch, "x")


if __name__ == "__main__":
    arguments(__doc__)
    main()
