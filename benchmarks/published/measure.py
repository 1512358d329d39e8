"""Run the program of one figure in a dry run, and print its counters as JSON."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping

from benchmarks.published.sources import NOT_COUNTED, Figure, load
from benchmarks.timing import arguments
from pytorch_memlab import simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.records import uncounted_at_most


def measure(figure: Figure) -> dict[str, int]:
    """Bytes of each counter when the program has ended, and what it returned by name."""
    import torch

    program = importlib.import_module(f"benchmarks.published.{figure.source}.program")
    with simulate(figure.gpu, compute=False, context=figure.context):
        returned: Mapping[str, int] | None = getattr(program, figure.call)(**figure.arguments)
        free, total = torch.cuda.mem_get_info()
        counters = {
            "peak allocated": torch.cuda.max_memory_allocated(),
            "peak reserved": torch.cuda.max_memory_reserved(),
            "peak active": torch.cuda.memory_stats()["active_bytes.all.peak"],
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "nvidia-smi": total - free,
        }
        device = get_device(0)
        share = device.peak_share()
    in_use = counters["peak active"]
    counters |= {"least peak reserved": in_use, "least reserved": in_use}
    counters["least nvidia-smi"] = in_use + (device.context() or 0)
    if share is not None and share.is_lower_bound:
        most = uncounted_at_most(share.approximations)
        if most is not None:
            counters[NOT_COUNTED] = most
    return counters | dict(returned or {})


def main(source: str, name: str) -> None:
    """Measure one figure and print the counters on the last line."""
    figure = next(figure for figure in load(source).figures if figure.name == name)
    os.environ.update(figure.environment)
    print(json.dumps(measure(figure)))


if __name__ == "__main__":
    main(*arguments(__doc__))
