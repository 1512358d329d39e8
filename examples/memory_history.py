"""A training step whose memory history is recorded, for `pytorch-memlab peak snapshot.pickle`."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the feed-forward network."""
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    """A small language model."""

    def __init__(self, width: int = 512, depth: int = 4, tokens: int = 10_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        return self.head(self.blocks(self.embedding(x)))


def train(steps: int = 2) -> None:
    """Train on random tokens."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(0, 10_000, (8, 513), device="cuda")
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history()
    train()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
