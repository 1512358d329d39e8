"""A training loop of one's own with ``accelerate``: bfloat16, accumulated and clipped gradients.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/accelerate_loop.py

It needs ``accelerate``.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def train(batches: int = 4, accumulate: int = 2) -> None:
    """Train a small classifier on random data.

    Args:
        batches: how many.
        accumulate: batches whose gradients make up one step.
    """
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=accumulate)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches)
    data = TensorDataset(torch.randn(batches * 16, 64), torch.randint(0, 10, (batches * 16,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for features, labels in loader:
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    print(f"loss {accelerator.gather(loss.detach()).mean().item():.2f}")


if __name__ == "__main__":
    train()
