"""CUDA_VISIBLE_DEVICES: which of the simulated GPUs the program sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .device_properties import uuid_of

if TYPE_CHECKING:
    from .simulated_gpu import SimulatedGPU

NAME = "CUDA_VISIBLE_DEVICES"


def visible(gpus: list[SimulatedGPU]) -> int:
    """The number of GPUs that the environment lets the program see.

    CUDA reads the list up to the first entry that names no GPU; a list that names one twice shows
    none. All simulated GPUs are alike, so only their number matters.
    """
    text = os.environ.get(NAME)
    if text is None:
        return len(gpus)
    found: list[int] = []
    for entry in text.split(","):
        index = _index(entry.strip(), gpus)
        if index is None:
            break
        if index in found:
            return 0
        found.append(index)
    return len(found)


def _index(entry: str, gpus: list[SimulatedGPU]) -> int | None:
    if entry.startswith("GPU-"):
        matches = [gpu.index for gpu in gpus if f"GPU-{uuid_of(gpu)}".startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    if entry.isdecimal() and int(entry) < len(gpus):
        return int(entry)
    return None
