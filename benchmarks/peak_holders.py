"""The cost under simulation of recording the holders of the peak, and all events.

Without values, where a simulation is quickest and recording costs most, and with them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from benchmarks.simulate_step import BATCH, CONTEXT, VOCABULARY, Model
from benchmarks.timing import MICROSECONDS, MILLISECONDS, arguments, heading, row
from pytorch_memlab._common.frames.call_stacks import call_stacks
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.simulation import simulate

TURNS = 15
COMPUTED_TURNS = 3
FEW_TOKENS = 64
OPS = 500


def step_of_a_model(batch: int = BATCH, length: int = CONTEXT) -> Callable[[], object]:
    """A training step of a model of GPT-2's size."""
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(VOCABULARY, (batch, length + 1), device="cuda")

    def step() -> None:
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def loop_of_small_ops() -> Callable[[], object]:
    """Ops that do next to nothing, each with an allocation and a free."""
    start = torch.zeros(8, device="cuda")

    def loop() -> None:
        x = start
        for _ in range(OPS):
            x = x + 1

    return loop


def processor_seconds(*works: Callable[[], object]) -> float:
    """Seconds that the processor spends on one run: other work on the machine changes it little."""
    gc.collect()
    begun = time.process_time()
    for work in works:
        work()
    return time.process_time() - begun


def costs(
    make: Callable[[], Callable[[], object]], turns: int = TURNS, *, compute: bool = False
) -> tuple[float, float, float]:
    """Seconds of some work alone, and how many times that it takes with a recording.

    Each turn runs the work alone, with the holders of the peak, and with all events.

    Returns:
        Median seconds alone, and the medians of the turns' ratios.
    """
    with simulate("h100", compute=compute):
        work = make()
        work()
        holders, history = Recording(), Recording(history=True)
        alone, ratios, history_ratios = [], [], []
        for _ in range(turns):
            before = processor_seconds(work)
            with_holders = _recorded(holders, work)
            with_history = _recorded(history, work)
            after = processor_seconds(work)
            alone.append((before + after) / 2)
            ratios.append(with_holders / alone[-1])
            history_ratios.append(with_history / alone[-1])
    median = statistics.median
    return median(alone), median(ratios), median(history_ratios)


def _recorded(recording: Recording, work: Callable[[], object]) -> float:
    """Seconds of the work and of reading all stacks that are still open at its end."""
    recording.begin()
    try:
        return processor_seconds(work, partial(_read_stacks, recording))
    finally:
        recording.end()
        recording.forget()


def _read_stacks(recording: Recording) -> None:
    call_stacks.read()
    for followed in recording._on:
        for live in followed.live.values():
            if live.log is not None:
                live.log._read()


def main() -> None:
    """Print the rows."""
    heading("Holders of the peak and all events, recorded on a simulated GPU")
    few_tokens = partial(step_of_a_model, 1, FEW_TOKENS)
    for what, found, count, unit in (
        ("step of GPT-2 without values", costs(step_of_a_model), MILLISECONDS, "ms"),
        ("small op without values", costs(loop_of_small_ops), MICROSECONDS / OPS, "us"),
        (
            f"step of GPT-2, {FEW_TOKENS} tokens, computed",
            costs(few_tokens, COMPUTED_TURNS, compute=True),
            MILLISECONDS,
            "ms",
        ),
    ):
        alone, ratio, history_ratio = found
        row(what, alone * count, unit)
        row(f"{what}, with the holders of the peak", ratio, "times", 1.1)
        row(f"{what}, with all events", history_ratio, "times", 1.1)


if __name__ == "__main__":
    arguments(__doc__)
    main()
