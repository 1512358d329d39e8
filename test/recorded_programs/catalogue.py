"""The program and the GPU of each recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from . import attention_from_start, graph_trainer, lm_large, lm_small
from .workloads import WORKLOADS, Workload

Program = Callable[..., None]
"""Is given two functions, to call where the recording begins and where it ends."""

PUBLIC: dict[str, tuple[str, Program]] = {
    "attention_from_start": ("a100", attention_from_start.run),
    "graph_trainer_expandable": ("a100", graph_trainer.run),
    "lm_small_ctx128_forward": ("a100", lm_small.run),
    "lm_small_ctx128_forward_bf16": ("a100", lm_small.run_in_bfloat16),
    "lm2.7b_ctx128_forward": ("h100", partial(lm_large.forward, length=128)),
    "lm2.7b_ctx128_forward_other": ("h100", partial(lm_large.forward_compiled, length=128)),
    "lm2.7b_ctx512_forward": ("h100", partial(lm_large.forward, length=512)),
    "lm2.7b_ctx128_forward_bf16": ("h100", partial(lm_large.forward_in_bfloat16, length=128)),
    "lm2.7b_ctx512_forward_bf16": ("h100", partial(lm_large.forward_in_bfloat16, length=512)),
    "lm2.7b_ctx128_train": ("h100", partial(lm_large.train, length=128)),
    "lm2.7b_ctx128_train_again": ("h100", partial(lm_large.train, length=128)),
    "lm2.7b_ctx256_train": ("h100", partial(lm_large.train, length=256)),
    "lm2.7b_ctx512_train": ("h100", partial(lm_large.train, length=512)),
}
"""Of recordings that other people published: the GPU to simulate, and the program."""

OPTIONS: dict[str, dict[str, Any]] = {"graph_trainer_expandable": graph_trainer.OPTIONS}
"""Options of ``simulate`` that a program needs, by the name of its recording."""

COMPILED = frozenset({"lm2.7b_ctx128_forward_other"})
"""Recordings that the compiler is in: Inductor's search for patterns, of which the simulation has
nothing, and the timing of kernels, whose number it does not know. Peaks alone are compared."""


def program_of(name: str, gpu: str = "h100") -> tuple[str, Program] | None:
    """The GPU and the program of a recording.

    Args:
        name: of the recording.
        gpu: what it was recorded on, where the recording itself tells.

    Returns:
        both, None if the program is not written yet.
    """
    if name in WORKLOADS:
        return gpu, partial(_recorded_whole, WORKLOADS[name])
    return PUBLIC.get(name)


def _recorded_whole(workload: Workload, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    kept = workload()
    end()
    del kept
