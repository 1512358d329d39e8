"""Record what the caching allocator of a real GPU does in every workload.

``python test/gpu/record.py [--out FOLDER] [NAME...]`` writes ``NAME.json.gz`` for each, in the
format of the traces that ``pytorch_memlab.simulation.replay`` takes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import torch  # noqa: E402
from recorded_programs.memory_history import trace_of  # noqa: E402
from recorded_programs.streams import FOLDER  # noqa: E402
from recorded_programs.workloads import WORKLOADS  # noqa: E402

from pytorch_memlab.simulation import replay  # noqa: E402


def main(arguments: list[str]) -> str | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the traces")
    parser.add_argument("--here", action="store_true", help="record one, in this process")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(WORKLOADS))
    if unknown:
        return f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}"
    if not torch.cuda.is_available():
        return "recording needs a CUDA GPU, and this machine has none"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.here:
        [name] = options.names
        return write(name, record(name), options.out)
    failed = [name for name in options.names or WORKLOADS if not in_a_process(name, options.out)]
    return f"not recorded: {', '.join(failed)}" if failed else None


def in_a_process(name: str, out: Path) -> bool:
    command = [sys.executable, __file__, "--here", "--out", str(out), name]
    return subprocess.run(command, check=False).returncode == 0


def record(name: str) -> dict[str, Any]:
    memory: Any = torch.cuda.memory
    torch.cuda.init()
    before = memory._snapshot()
    memory._record_memory_history("all", context="alloc", stacks="all", max_entries=1_000_000)
    kept = WORKLOADS[name]()
    torch.cuda.synchronize()
    after = memory._snapshot()
    memory._record_memory_history(None)
    del kept
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
    settings = {**after.get("allocator_settings", {}), "PYTORCH_CUDA_ALLOC_CONF": conf}
    total_memory = torch.cuda.get_device_properties(0).total_memory
    return trace_of(before, after, settings, versions(), total_memory=total_memory)


def versions() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": driver,
    }


def write(name: str, trace: dict[str, Any], out: Path) -> str | None:
    """Write a trace that the allocator's model replays; another one is written and said."""
    text = json.dumps(trace, separators=(",", ":"))
    (out / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    result = replay(trace)
    print(f"{name}: {len(trace['events'])} events, {len(result.mismatches)} differ in replay")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
