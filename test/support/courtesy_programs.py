"""Programs that train on ``cuda``, and stop now and then: what they compute must not show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # optimizers import it, and it wraps torch.manual_seed
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Stop = Callable[[], None]

STEPS = 3


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], torch.Tensor],
    stop: Stop,
) -> list[Any]:
    """Train, with a stop before each part of a step. Returns losses and final parameters."""
    seen: list[Any] = []
    for step in range(STEPS):
        stop()
        loss = loss_of(step)
        stop()
        loss.backward()
        stop()
        optimizer.step()
        stop()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen + [parameter.tolist() for parameter in model.parameters()]


def data(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(3)).cuda()


def adam(stop: Stop) -> list[Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    inp = data(4, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return train(model, optimizer, lambda step: model(inp + step).square().mean(), stop)


def fused_adam(stop: Stop) -> list[Any]:
    model = nn.Linear(8, 8).cuda()
    inp = data(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    return train(model, optimizer, lambda step: model(inp + step).square().mean(), stop)


def momentum_and_tied_weights(stop: Stop) -> list[Any]:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7, bias=False)).cuda()
    model[2].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ids = torch.arange(7, device="cuda")
    seen = train(
        model, optimizer, lambda step: functional.cross_entropy(model(ids), ids.roll(step)), stop
    )
    assert model[2].weight is model[0].weight
    return seen


def lstm(stop: Stop) -> list[Any]:
    model = nn.LSTM(5, 6, num_layers=2).cuda()
    inp = data(4, 3, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    begin = {id(weight): weight.data_ptr() for weight in model.parameters()}
    first = min(begin.values())
    places = [begin[id(weight)] - first for weight in model.parameters()]
    seen = train(model, optimizer, lambda step: model(inp + step)[0].square().mean(), stop)
    first = min(weight.data_ptr() for weight in model.parameters())
    assert [weight.data_ptr() - first for weight in model.parameters()] == places
    return seen


def views_hooks_and_retained_gradients(stop: Stop) -> list[Any]:
    model = nn.Linear(6, 6).cuda()
    scale = torch.full((6,), 1.5, device="cuda")
    inp = data(6, 6).t()[1:]
    kept: list[Any] = []
    model.weight.register_hook(lambda gradient: gradient * scale)
    model.weight.register_post_accumulate_grad_hook(lambda weight: kept.append(weight.grad.sum()))

    def loss_of(step: int) -> torch.Tensor:
        hidden = model(inp)
        hidden.retain_grad()
        hidden.register_hook(lambda gradient: gradient + scale * step)
        kept.append(hidden)
        part = hidden.view(-1)[3:21]
        part.mul_(2)  # in place, on a view of what the graph goes through
        return (hidden.sin() * hidden).sum()

    seen = train(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_of, stop)
    return seen + [each.tolist() for each in kept] + [kept[0].grad.tolist()]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.save_for_backward(tensor)
        ctx.square = tensor * tensor
        ctx.factor = factor
        return tensor**3 * factor

    @staticmethod
    def backward(ctx, gradient):
        (tensor,) = ctx.saved_tensors
        return gradient * (ctx.square + 2 * tensor * tensor) * ctx.factor, None


def custom_function(stop: Stop) -> list[Any]:
    model = nn.Linear(6, 6).cuda()
    inp, factor = data(4, 6), torch.full((6,), 0.5, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return train(model, optimizer, lambda step: Cube.apply(model(inp + step), factor).sum(), stop)


def checkpointed(stop: Stop) -> list[Any]:
    model = nn.ModuleList([nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)]).cuda()
    inp = data(4, 6).requires_grad_()

    def loss_of(step: int) -> torch.Tensor:
        hidden = inp * (1 + step)
        for layer in model:
            again = checkpoint(layer, hidden.sin(), use_reentrant=True)
            hidden = checkpoint(torch.tanh, again, use_reentrant=False)
        return hidden.sum()

    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, stop)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


def attention_under_autocast(stop: Stop) -> list[Any]:
    model = Attention().cuda()
    inp = data(2, 16, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def loss_of(step: int) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(inp + step)
            stop()
            return model(out).float().square().mean()

    return train(model, optimizer, loss_of, stop)


def prefetched_with_random_numbers(stop: Stop) -> list[Any]:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.BatchNorm1d(6)).cuda()
    side = torch.cuda.Stream()
    source = torch.arange(4 * 6 * STEPS, dtype=torch.float32).view(STEPS, 4, 6).pin_memory()
    address = source.data_ptr()
    batches: list[torch.Tensor] = []

    def prefetch(step: int) -> None:
        with torch.cuda.stream(side):
            batches.append(source[step].cuda(non_blocking=True))

    def loss_of(step: int) -> torch.Tensor:
        torch.cuda.current_stream().wait_stream(side)
        batch = batches.pop() + torch.rand(4, 6, device="cuda")
        if step + 1 < STEPS:
            prefetch(step + 1)
        return model(batch).sin().sum()

    prefetch(0)
    seen = train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, stop)
    assert source.is_pinned()
    assert source.data_ptr() == address
    return [*seen, torch.cuda.get_rng_state().tolist(), torch.rand(3, device="cuda").tolist()]


PROGRAMS = [
    adam,
    fused_adam,
    momentum_and_tied_weights,
    lstm,
    views_hooks_and_retained_gradients,
    custom_function,
    checkpointed,
    attention_under_autocast,
    prefetched_with_random_numbers,
]


def run(program: Callable[[Stop], list[Any]], stop: Stop) -> list[Any]:
    """Run a program from the same seed."""
    torch.manual_seed(7)
    return program(stop)
