"""A language model of 2.7 billion parameters: forward passes, and training steps with AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from benchmarks.published.inductor_of_2025 import timed_as_published

WIDTH, INNER, HEADS, LAYERS, VOCABULARY, BATCH = 2560, 10_240, 32, 32, 10_000, 4


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        # The recorded version of einsum left its result in this order: outputs slowest.
        return torch.einsum("oi,...i->o...", self.weight, x).movedim(0, -1)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        root = torch.sqrt(norm**2 / x.shape[-1] + 1e-5)
        scaled = x / root
        weighted = torch.einsum("d,...d->...d", self.weight, scaled)
        return weighted.to(x.dtype)


class Rotation(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.cos, self.sin = torch.ones(2, length, width // 2, device="cuda")

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cos = self.cos[positions].unsqueeze(1)
        sin = self.sin[positions].unsqueeze(1)
        x = x.unflatten(-1, (-1, 2))
        out = torch.empty_like(x)
        out[..., 0] = x[..., 0] * cos - x[..., 1] * sin
        out[..., 1] = x[..., 0] * sin + x[..., 1] * cos
        return out.flatten(-2)


def softmax(scores: Tensor, dim: int) -> Tensor:
    largest = torch.max(scores, dim=dim, keepdim=True).values
    exponentials = torch.exp(scores - largest)
    sums = torch.sum(exponentials, dim=dim, keepdim=True)
    return exponentials / sums


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", queries, keys)
    scores = scores / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(mask == 0, -math.inf)
    weights = softmax(scores, -1)
    return torch.einsum("...qk,...kd->...qd", weights, values)


class Attention(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotation = Rotation(WIDTH // HEADS, length)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        queries = self.query(x)
        keys = self.key(x)
        values = self.value(x)
        rotated_queries, rotated_keys, values_by_head = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (queries, keys, values)
        )
        positions = torch.arange(length, device="cuda").unsqueeze(0).expand(batch, -1)
        rotated_queries = self.rotation(rotated_queries, positions)
        rotated_keys = self.rotation(rotated_keys, positions)
        mask = torch.triu(torch.ones(length, length, device="cuda"), diagonal=1).bool()
        mask = (~mask).unsqueeze(0).unsqueeze(0).expand(batch, HEADS, -1, -1)
        mixed = attend(rotated_queries, rotated_keys, values_by_head, mask)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            Linear(WIDTH, INNER), Linear(WIDTH, INNER), Linear(INNER, WIDTH)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        up = self.up(x)
        gate = torch.sigmoid(gate) * gate
        return self.down(gate * up)


class Block(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.first_norm, self.attention = RMSNorm(WIDTH), Attention(length)
        self.second_norm, self.feed_forward = RMSNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first_norm(x)
        y = self.attention(y)
        x = x + y
        y = self.second_norm(x)
        y = self.feed_forward(y)
        return x + y


class Model(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH, device="cuda"))
        self.blocks = nn.ModuleList(Block(length) for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def forward(begin: Callable[[], None], end: Callable[[], None], length: int) -> None:
    model = Model(length)
    tokens = torch.zeros(BATCH, length, dtype=torch.int64, device="cuda")
    begin()
    logits = model(tokens)
    end()
    del logits


def forward_compiled(begin: Callable[[], None], end: Callable[[], None], length: int) -> None:
    """The recording begins before the first call, which compiles.

    It has 37 allocations of 256 MiB, as the timing of PyTorch 2.6 and 2.7 makes.
    """
    model = torch.compile(Model(length))
    tokens = torch.zeros(BATCH, length, dtype=torch.int64, device="cuda")
    begin()
    with timed_as_published():
        logits = model(tokens)
    end()
    del logits


def forward_in_bfloat16(begin: Callable[[], None], end: Callable[[], None], length: int) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        forward(begin, end, length)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    largest = torch.max(logits, dim=-1, keepdim=True).values
    logits = logits - largest
    sums = torch.sum(torch.exp(logits), dim=-1)
    picked = logits[torch.arange(targets.shape[0]), targets]
    losses = torch.log(sums) - picked
    return losses.mean()


class AdamW:
    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.state: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            gradient = parameter.grad
            first = torch.zeros_like(parameter)
            second = torch.zeros_like(parameter)
            self.state[parameter] = (first, second)
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
            divisor = (second.sqrt() / 0.2).add_(1e-8)
            parameter.mul_(0.999).addcdiv_(first, divisor, value=-1e-3)


def train(begin: Callable[[], None], end: Callable[[], None], length: int) -> None:
    model = Model(length)
    optimizer = AdamW(model.parameters())
    tokens = torch.zeros(BATCH, length, dtype=torch.int64, device="cuda")
    begin()
    logits = model(tokens)
    loss = cross_entropy(logits.flatten(0, 1), tokens.view(-1))
    loss.backward()
    optimizer.step()
    end()
