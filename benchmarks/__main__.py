"""Run every benchmark, each in its own process."""

import subprocess
import sys

from benchmarks.timing import arguments

NAMES = (
    "line_event",
    "unregistered_call",
    "display_time",
    "many_functions",
    "reporter",
    "oom_report",
    "import_time",
    "simulate_step",
    "small_ops",
    "peak_holders",
    "gpu_line_event",
    "courtesy",
    "snapshot",
    "jobs",
    "peers",
)

arguments(__doc__)
failed = [
    name
    for name in NAMES
    if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
]
if failed:
    sys.exit(f"did not run to their end: {', '.join(failed)}")
