"""Forward pass of a small language model: RMSNorm, rotary positions, SwiGLU, its own attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH, INNER, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 768, 3072, 12, 12, 10_000, 4, 128


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)

    def weight_first(self, x: Tensor) -> Tensor:
        return torch.einsum("oi,...i->...o", self.weight, x)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        square = torch.einsum("...d,...d->...", x, x)
        square = square / x.shape[-1] + 1e-5
        root = torch.sqrt(square).unsqueeze(-1)
        return x / root * self.weight


class Rotation(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.cos = torch.ones(length, width, device="cuda")
        self.sin = torch.ones(length, width, device="cuda")

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cos = self.cos[positions]
        sin = self.sin[positions]
        return x * cos + rotate_half(x) * sin


def rotate_half(x: Tensor) -> Tensor:
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).reshape(x.shape)


def softmax(scores: Tensor) -> Tensor:
    largest = torch.max(scores, dim=-1, keepdim=True).values
    exponentials = torch.exp(scores - largest)
    sums = torch.sum(exponentials, dim=-1, keepdim=True)
    return exponentials / sums


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", queries, keys)
    scores = scores / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(mask == 0, -math.inf)
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, values)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotation = Rotation(WIDTH // HEADS, LENGTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        queries, keys, values = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        queries = self.rotation(queries, positions)
        keys = self.rotation(keys, positions)
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], device="cuda")).to(torch.bool)
        mixed = attend(queries, keys, values, mask)
        mixed_heads = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(mixed_heads)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            Linear(WIDTH, INNER), Linear(WIDTH, INNER), Linear(INNER, WIDTH)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate.weight_first(x)
        up = self.up.weight_first(x)
        down = self.down.weight_first(silu(gate) * up)
        return down.to(x.dtype)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        first = self.first_norm(x)
        attended = self.attention(first, positions)
        y = x + attended
        second = self.second_norm(y)
        fed = self.feed_forward(second)
        return y + fed


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH, device="cuda"))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self._after(
            x=self.embedding[tokens],
            positions=torch.arange(tokens.shape[1], device="cuda"),
        )

    def _after(self, positions: Tensor, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x))


def run(begin: Callable[[], None], end: Callable[[], None]) -> None:
    model = Model()
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
    begin()
    with torch.no_grad():
        model(tokens)
    end()


def run_in_bfloat16(begin: Callable[[], None], end: Callable[[], None]) -> None:
    model = Model()
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
    begin()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens)
    del logits
    end()
