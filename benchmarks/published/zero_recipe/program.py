"""PyTorch's recipe of the ZeroRedundancyOptimizer: twenty linear layers on two GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn


def _shares(parameters: Sequence[torch.Tensor], ranks: int) -> list[list[torch.Tensor]]:
    """Give each parameter in order to the rank with the least numbers."""
    shares: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for parameter in parameters:
        least = min(shares, key=lambda share: sum(tensor.numel() for tensor in share))
        least.append(parameter)
    return shares


def _in_order(optimizer: Any, _given: Any = None) -> Any:
    """The groups of parameters of each rank, as of PyTorch 1.8; today's are sorted by size."""
    if not optimizer._partition_parameters_cache:
        (group,) = optimizer.param_groups
        optimizer._partition_parameters_cache += [
            [{**group, "params": share}] for share in _shares(group["params"], optimizer.world_size)
        ]
    return optimizer._partition_parameters_cache


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
        with patch.object(ZeroRedundancyOptimizer, "_partition_parameters", _in_order):
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
