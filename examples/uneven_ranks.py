"""Ranks that torchrun starts, of which one gets a larger batch than the others."""

import os

import torch
from torch import nn


def _train(rank: int) -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    size = 6144 if rank == 1 else 1024
    for _ in range(2):
        batch = torch.randn(size, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _train(int(os.environ.get("RANK", "0")))
