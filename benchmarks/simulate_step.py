"""A training step of a model of GPT-2's size: on the CPU, and on a simulated GPU.

The time that the processors spent on it is told too: other work on the machine, which lengthens one
turn and not the next, changes that little.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from benchmarks.timing import arguments, heading, row, seconds

LAYERS, WIDTH, HEADS, VOCABULARY, CONTEXT, BATCH = 12, 768, 12, 50257, 512, 8
TURNS = 3


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer of the model."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        hidden = functional.gelu(self.up(self.norm_2(x)), approximate="tanh")
        added: torch.Tensor = x + self.down(hidden)
        return added


class Model(nn.Module):
    """124 million parameters; the last layer shares its weight with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of every next token."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.blocks(self.tokens(ids) + self.positions(places)))
        return functional.linear(x, self.tokens.weight)


def work(device: str) -> None:
    """Build the model, then train one step for each line of standard input, and print its times."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)

    def step() -> None:
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in sys.stdin:
        begun = time.process_time()
        print(seconds(step), time.process_time() - begun, flush=True)


class Worker:
    """A process that trains a step when asked to.

    Args:
        device: ``cpu``, or ``cuda`` for a simulated one.
    """

    def __init__(self, device: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulate_step", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> tuple[float, float]:
        """Train one step; returns its seconds by the clock, and those of all processors."""
        assert self._process.stdin
        assert self._process.stdout
        print(file=self._process.stdin, flush=True)
        clock, processors = map(float, self._process.stdout.readline().split())
        return clock, processors

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()


def main() -> None:
    heading(f"A training step of GPT-2's size, batch {BATCH} x {CONTEXT}, by turns")
    workers = [Worker("cpu"), Worker("cuda")]
    for worker in workers:  # optimizer state is made, and caches fill
        worker.step()
    turns = [(plain.step(), simulated.step()) for plain, simulated in [workers] * TURNS]
    for worker in workers:
        worker.end()
    for position, (clock, target) in enumerate([("by the clock", 1.3), ("of processors", None)]):
        pairs = [(plain[position], simulated[position]) for plain, simulated in turns]
        plain, simulated = (statistics.median(times) for times in zip(*pairs, strict=True))
        row(f"on the CPU, {clock}", plain, "s")
        row(f"under simulate, {clock}", simulated, "s")
        ratio = statistics.median(simulated / plain for plain, simulated in pairs)
        row("    of the CPU's time, median of the turns", ratio, "x", target)


if __name__ == "__main__":
    match arguments(__doc__):
        case ["cpu"]:
            work("cpu")
        case ["cuda"]:
            from pytorch_memlab.simulation import simulate

            with simulate("h100"):
                work("cuda")
        case _:
            main()
