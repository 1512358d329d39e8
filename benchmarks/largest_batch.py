"""The largest batch that ``fit --vary`` finds, against a run of every size under ``simulate``.

Arguments: names of programs; without any, all eight. Two of them need ``transformers``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

from benchmarks.batch_programs import PROGRAMS, BatchProgram
from benchmarks.timing import arguments, heading
from pytorch_memlab import simulate
from pytorch_memlab.fitting.child import ChildWork, run_in_children
from pytorch_memlab.fitting.grid import GridSearch
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.fitting.trial_run import processors
from pytorch_memlab.fitting.variable import read_variable
from pytorch_memlab.simulation.hardware.presets import find_gpu

MIB = 2**20


def fits(request: tuple[str, int, int]) -> bool | None:
    """True if a program runs with a size of its batch on a GPU of some memory.

    Args:
        request: path of the program, the size, and bytes of the GPU.
    """
    path, batch, memory = request
    torch.set_num_threads(1)
    os.environ["BATCH"] = str(batch)
    with simulate(memory, compute=False):
        try:
            runpy.run_path(path, run_name="__main__")
        except torch.OutOfMemoryError:
            return False
    return True


def _lost(_status: int) -> None:
    """The result of a run whose program failed."""


def every_size(path: str, values: Sequence[int], memories: Sequence[int]) -> list[int | None]:
    """The largest size that runs, of each GPU.

    Args:
        path: of the program.
        values: all sizes.
        memories: bytes of the GPUs.
    """
    requests = [(path, value, memory) for memory in memories for value in values]
    works = [ChildWork(fits, one, _lost) for one in requests]
    fitting: dict[int, list[int]] = {memory: [] for memory in memories}
    for index, found in run_in_children(works, processors()):
        _, value, memory = requests[index]
        if found is None:
            raise RuntimeError(f"the program failed with a batch of {value}")
        if found:
            fitting[memory].append(value)
    return [max(fitting[memory], default=None) for memory in memories]


def found_sizes(
    path: str, values: Sequence[int], memories: Sequence[int] | None
) -> tuple[list[int], list[int | None], int]:
    """The largest size that a search finds, of each GPU.

    Args:
        path: of the program.
        values: all sizes.
        memories: bytes of the GPUs; None for GPUs that some of the sizes fit on.

    Returns:
        Bytes of the GPUs, the sizes, and the number of runs.
    """
    variable = read_variable(f"BATCH={values[0]}:{values[-1]}")
    target = ProgramTarget(path)
    if memories is None:
        probe = GridSearch(path, [("2**46", find_gpu(2**46))], [variable], Settings())
        probe.run(target)
        (answer,) = probe.answers
        least, most = answer.points[0].peak, answer.points[-1].peak
        shares = (0.35, 0.5, 0.8)
        memories = [round(least + share * (most - least)) // MIB * MIB for share in shares]
    gpus = [(str(memory), find_gpu(memory)) for memory in memories]
    search = GridSearch(path, gpus, [variable], Settings())
    search.run(target)
    return list(memories), [one.largest.value for one in search.answers], len(search.trials)


def compare(name: str, program: BatchProgram) -> bool:
    """Compare both ways on three GPUs; returns whether they agree."""
    os.environ.update(RANK="0", WORLD_SIZE=str(program.world_size))
    values = range(1, program.values + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(program.source)
        begun = time.perf_counter()
        memories, found, runs = found_sizes(path, values, None)
        searched = time.perf_counter() - begun
        begun = time.perf_counter()
        expected = every_size(path, values, memories)
        tried = time.perf_counter() - begun
    sizes = ", ".join(f"{memory // MIB} MiB" for memory in memories)
    agrees = "equal" if found == expected else f"DIFFERENT from {expected}"
    print(
        f"  {name:<16} {sizes:<32} {found!s:<16} {agrees}; {runs} runs in {searched:.0f} s,"
        f" {len(values) * len(memories)} in {tried:.0f} s",
        flush=True,
    )
    return found == expected


def main(names: Sequence[str]) -> int:
    """Compare all programs, or some."""
    heading("Largest batch: found by a search, and by every size from 1 to 24")
    has_transformers = importlib.util.find_spec("transformers") is not None
    if has_transformers:  # forks have it then, which saves each of them the import
        importlib.import_module("transformers.trainer")
        importlib.import_module("transformers.models.llama.modeling_llama")
        importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    is_right = True
    for name in names or PROGRAMS:
        program = PROGRAMS[name]
        if program.needs_transformers and not has_transformers:
            print(f"  {name:<16} not run: it needs transformers")
            continue
        is_right = compare(name, program) and is_right
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(arguments(__doc__)))
