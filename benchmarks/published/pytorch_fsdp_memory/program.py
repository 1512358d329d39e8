"""PyTorch's test of FSDP's memory: four convolutions with norms, each norm sharded on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_HIDDEN = 128


def _convolutions(sizes: list[tuple[int, int, int, int]]) -> Iterator[nn.Module]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for channels, outputs, kernel, padding in sizes:
        yield nn.Conv2d(channels, outputs, kernel_size=kernel, padding=padding)
        yield FullyShardedDataParallel(nn.BatchNorm2d(outputs))
        yield nn.ReLU(inplace=True)


class _Model(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        widths = [(64, _HIDDEN, 5, 2), (_HIDDEN, _HIDDEN, 5, 2), (_HIDDEN, _HIDDEN, 5, 2)]
        self.stem: nn.Module = nn.Sequential(*_convolutions([(3, 64, 3, 0)]))
        self.blocks: nn.Module = nn.Sequential(
            *_convolutions(widths), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()
        )
        self.head: nn.Module = nn.Linear(_HIDDEN, 10)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x, blocks = self.stem(x), self.blocks
        x = checkpoint(blocks, x, use_reentrant=True) if self.checkpointed else blocks(x)
        outputs: torch.Tensor = self.head(x)
        return outputs


def _in_use() -> int:
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def train(checkpointed: bool) -> dict[str, int]:
    """Two steps of rank 0; the bytes in use after the forward pass of each."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("nccl")
    batch = torch.randn(2, 3, 224, 224).cuda()
    model: Any = _Model(checkpointed)
    for name in ("stem", "blocks", "head"):
        setattr(model, name, FullyShardedDataParallel(getattr(model, name)))
    model = FullyShardedDataParallel(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    sizes = {}
    for step in ("first", "second"):
        outputs = model(batch)
        sizes[step] = _in_use()
        total: Any = sum(row.sum() for row in outputs[0])
        loss = nn.functional.mse_loss(total, torch.tensor(0.0).cuda())
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
    return sizes
