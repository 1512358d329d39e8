"""Train GPT-2 (124 million parameters) on random tokens, and evaluate it after each epoch.

It takes more memory than it needs: the guide "From the error to the fix" finds out why.

    pytorch-memlab run --dry-run --gpu rtx3060 examples/gpt2.py
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let each token look at those before it."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(length, length, device=x.device, dtype=torch.bool))
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed)


class Block(nn.Module):
    """Attention and a network for each token, both beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what both find to the input."""
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class GPT2(nn.Module):
    """The small GPT-2."""

    def __init__(
        self,
        vocabulary: int = 50257,
        length: int = 1024,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Score each token of the vocabulary as the next one."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The mean loss of the next tokens."""
    scores = model(ids[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> None:
    """One epoch."""
    for ids in data:
        loss = loss_of(model, ids.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    """The mean loss of all batches."""
    losses = [loss_of(model, ids.cuda()) for ids in data]
    return torch.stack(losses).mean()


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    data = torch.randint(50257, (4, options.batch, 1025))
    model = GPT2().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(options.epochs):
        train(model, optimizer, data[:2])
        print(f"epoch {epoch}: loss {evaluate(model, data[2:]).item():.3f}")


if __name__ == "__main__":
    main()
