"""PyTorch's recipe of the ZeroRedundancyOptimizer: twenty linear layers on two GPUs."""

from __future__ import annotations

import torch
from torch import nn


def train(sharded: bool) -> dict[str, int]:
    """One step; the peak after each part of it. Adam loops over parameters, as before 1.12."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.distributed.init_process_group("nccl")
    peaks = {}
    local = nn.Sequential(*(nn.Linear(2000, 2000).cuda() for _ in range(20)))
    peaks["model"] = torch.cuda.max_memory_allocated()
    model = nn.parallel.DistributedDataParallel(local, device_ids=[0])
    peaks["ddp"] = torch.cuda.max_memory_allocated()
    if sharded:
        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, foreach=False
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    outputs = model(torch.randn(20, 2000).cuda())
    nn.functional.mse_loss(outputs, torch.randn(20, 2000).cuda()).backward()
    peaks["before step"] = torch.cuda.max_memory_allocated()
    optimizer.step()
    peaks["after step"] = torch.cuda.max_memory_allocated()
    return peaks
