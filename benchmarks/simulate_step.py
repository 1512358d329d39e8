"""A training step of a model of GPT-2's size: on the CPU, and on a simulated GPU."""

from __future__ import annotations

import statistics
import subprocess
import sys

import torch
from torch import nn
from torch.nn import functional

from benchmarks.timing import heading, row, seconds

LAYERS, WIDTH, HEADS, VOCABULARY, CONTEXT, BATCH = 12, 768, 12, 50257, 256, 1
TURNS = 7


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
    """Build the model, then train one step for each line of standard input, and print its time."""
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
        print(seconds(step), flush=True)


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

    def step(self) -> float:
        """Train one step; returns its seconds."""
        assert self._process.stdin
        assert self._process.stdout
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()


def main() -> None:
    heading(f"A training step of GPT-2's size, batch {BATCH} x {CONTEXT}, by turns")
    workers = [Worker("cpu"), Worker("cuda")]
    for _ in range(2):  # optimizer state is made, and caches fill
        for worker in workers:
            worker.step()
    turns = [(plain.step(), simulated.step()) for plain, simulated in [workers] * TURNS]
    for worker in workers:
        worker.end()
    plain, simulated = (statistics.median(times) for times in zip(*turns, strict=True))
    row("on the CPU", plain, "s")
    row("under simulate", simulated, "s")
    ratio = statistics.median(simulated / plain for plain, simulated in turns)
    row("    of the CPU's time, median of the turns", ratio, "x", 2.0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["cpu"]:
            work("cpu")
        case ["cuda"]:
            from pytorch_memlab.simulation import simulate

            with simulate("h100"):
                work("cuda")
        case _:
            main()
