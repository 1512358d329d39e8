"""A server starts: weights, a prompt to measure, the cache, then thirty CUDA graphs in one pool.

As servers of language models do, it takes a share of the GPU (``--utilization``). What the weights
and a prompt of the largest size leave of that share is for the cache of keys and values. The graphs
come on top. They are captured from the largest batch to the smallest, so that each finds its memory
in the blocks of the one before. Then the server gets its first prompt.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 4096, 32, 8, 32_000, 512
BATCHES = [1, 2, 4, *range(8, 217, 8)]
TOKENS = 8192


class Layer(nn.Module):
    """Attention to the cache, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend to the cache of each request."""
        query = self.qkv(self.norm(x))[:, :WIDTH].view(len(x), HEADS, 1, -1)
        context = functional.scaled_dot_product_attention(query, keys, values)
        x = x + self.proj(context.reshape(len(x), WIDTH))
        return x + self.down(functional.gelu(self.up(x)))


class Decoder(nn.Module):
    """One token for each request of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token."""
        x = self.embedding(tokens)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x = layer(x, keys[: len(x)], values[: len(x)])
        return self.head(x)


def prompt(model: Decoder) -> None:
    """The MLPs alone: what they take is the most."""
    hidden = torch.zeros(TOKENS, WIDTH)
    for layer in model.layers:
        hidden = hidden + layer.down(functional.gelu(layer.up(hidden)))


def shown(name: str, nbytes: int) -> None:
    """Print a size."""
    print(f"{name:30}{nbytes / 2**30:8.2f} GiB")


def main() -> None:
    """Start the server."""
    options = argparse.ArgumentParser()
    options.add_argument("--utilization", type=float, default=0.9)
    share = options.parse_args().utilization
    torch.set_grad_enabled(False)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float16)
        model = Decoder()
        weights = torch.cuda.memory_allocated()
        shown("weights", weights)
        prompt(model)
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_allocated()
        outside = total - free - torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        shown("at the peak of a prompt", peak)
        for_cache = int(total * share) - peak - outside
        row = (LAYERS, 2, 1, HEADS, CONTEXT, WIDTH // HEADS)
        requests = for_cache // (2 * torch.Size(row).numel())
        cache = torch.zeros(*row[:2], requests, *row[3:])
        shown(f"cache of {requests} requests", cache.nbytes)
        tokens = torch.zeros(max(BATCHES), dtype=torch.long)
        before = torch.cuda.memory_reserved()
        graphs = {}
        pool = None
        for batch in reversed(BATCHES):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = model(tokens[:batch], cache)
            graphs[batch] = graph, logits
            pool = graph.pool()
        shown(f"reserved by {len(graphs)} graphs", torch.cuda.memory_reserved() - before)
        free = torch.cuda.mem_get_info()[0]
        shown("free on the GPU", free)
        safe = share + (free - (peak - weights)) / total
        print(f"safe up to --utilization {int(safe * 1000) / 1000}", flush=True)
        prompt(model)
        for graph, _ in graphs.values():
            graph.replay()


if __name__ == "__main__":
    main()
