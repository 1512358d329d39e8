"""``torch.distributed.pipelining.pipeline`` traces a model on a simulated GPU and splits it."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from support.side_by_side_ranks import run_ranks
from torch import nn

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

pipelining = pytest.importorskip("torch.distributed.pipelining")

WIDTH, ROWS, MICRO_BATCHES = 512, 1024, 4
SCALES = "scale_grads" in inspect.signature(pipelining.ScheduleGPipe).parameters


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def loss_of(output, target):
    return ((output - target) ** 2).sum()


def made():
    """A model and its input on the CPU: the generator of a GPU draws other numbers."""
    torch.manual_seed(0)
    return Layers(), torch.randn(ROWS, WIDTH)


def train(rank, *, is_traced):
    """Two steps of a stage; the gradient of its weight, and what its second step adds at most."""
    device = torch.device("cuda", 0)
    model, x = (one.to(device) for one in made())
    if is_traced:
        before = {"layers.1": pipelining.SplitPoint.BEGINNING}
        part = x.chunk(MICRO_BATCHES)[0]
        stage = pipelining.pipeline(model, (part,), split_spec=before).build_stage(rank, device)
    else:
        module = nn.Sequential(model.layers[rank], nn.ReLU())
        stage = pipelining.PipelineStage(module, rank, 2, device)
    schedule = pipelining.ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=loss_of)
    inputs = () if rank else (x,)
    target = {"target": x} if rank else {}
    schedule.step(*inputs, **target)
    stage.submod.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    schedule.step(*inputs, **target)
    [weight] = stage.submod.parameters()
    assert weight.device == device
    return weight.grad.cpu(), torch.cuda.max_memory_allocated() - before


def test_gradients_of_a_traced_pipeline_are_those_of_the_model():
    found = run_ranks(lambda rank: train(rank, is_traced=True), 2, compute=True)
    model, x = made()
    loss_of(model(x), x).backward()
    for (gradient, _), layer in zip(found, model.layers, strict=True):
        expected = layer.weight.grad / (MICRO_BATCHES if SCALES else 1)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compute", [True, False], ids=["computed", "shapes"])
def test_a_traced_stage_takes_what_a_stage_made_by_hand_takes(compute):
    traced = run_ranks(lambda rank: train(rank, is_traced=True)[1], 2, compute=compute)
    by_hand = run_ranks(lambda rank: train(rank, is_traced=False)[1], 2, compute=compute)
    assert traced == by_hand
    assert all(type(nbytes) is int for nbytes in traced)
