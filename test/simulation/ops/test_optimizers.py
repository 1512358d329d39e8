"""Temporaries of optimizers: fused ones have none."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn
from torch import nn

from pytorch_memlab import simulate


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_fused_optimizers_take_nothing(kind):
    def optimizer():
        weight = randn(100).requires_grad_()
        weight.grad = randn(100)
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind([weight], lr=0.1, fused=True, **options)
        optimizer.step()
        return optimizer

    assert events(lambda one: one.step(), optimizer) == []


def test_optimizers_choose_as_on_cuda():
    with simulate("1GiB"):
        layer = nn.Linear(256, 256).cuda()
        layer.weight.grad, layer.bias.grad = (torch.ones_like(one) for one in layer.parameters())
        optimizer = torch.optim.Adam(layer.parameters())
        optimizer.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        rooted = 256 * 256 * 4 + 256 * 4
        assert torch.cuda.max_memory_allocated() - before == rooted
        fused = torch.optim.Adam(layer.parameters(), fused=True)
        fused.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fused.step()
        assert torch.cuda.max_memory_allocated() == before
