"""Tensors and a model on a simulated GPU, and the bytes that it holds."""

from __future__ import annotations

import torch


def allocated(device: int = 0) -> int:
    return torch.cuda.memory_allocated(device)


def on_gpu(*size: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(size).numel()), device="cuda").view(size).clone()


def make_trainer(kind: type[torch.optim.Optimizer]):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model[2].weight = model[0].weight
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3)))
    model.cuda()
    return model, kind(model.parameters(), lr=0.1)
