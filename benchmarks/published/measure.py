"""Run the program of one figure in a dry run, and print its counters as JSON."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping

from benchmarks.published.sources import Figure, load
from benchmarks.timing import arguments
from pytorch_memlab import simulate


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
    return counters | dict(returned or {})


def main(source: str, name: str) -> None:
    """Measure one figure and print the counters on the last line."""
    figure = next(figure for figure in load(source).figures if figure.name == name)
    os.environ.update(figure.environment)
    print(json.dumps(measure(figure)))


if __name__ == "__main__":
    main(*arguments(__doc__))
