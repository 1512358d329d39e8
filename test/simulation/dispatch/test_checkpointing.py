"""Activation checkpointing on a simulated GPU: what is kept and what the backward pass needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from pytorch_memlab import LineProfiler, simulate

MIB = 2**20
SHAPE = (256, 1024)
"""Of every tensor here: 1 MiB."""

BLOCKS = 4


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Keeps the results of relu and of tanh, and its arguments."""
    return torch.tanh(torch.relu(x * w))


def saving(op: Any) -> Callable[..., torch.Tensor]:
    def policy(_context: Any, called: Any, *_args: Any, **_kwargs: Any) -> Any:
        kinds = checkpointing.CheckpointPolicy
        return kinds.MUST_SAVE if called is op else kinds.PREFER_RECOMPUTE

    contexts = partial(checkpointing.create_selective_checkpoint_contexts, policy)
    return partial(checkpoint, block, use_reentrant=False, context_fn=contexts)


WAYS: dict[str, tuple[Callable[[], Callable[..., torch.Tensor]], int, int]] = {
    # Two results a block. The peak: the eight less relu's of the last block, which is used up; then
    # the gradients of relu's argument, of x and of w.
    "none": (lambda: block, 8, 10),
    # One result a block, that of the whole. In the backward pass of the last block but one: three
    # of them (the last block's own is held by the program), w's gradient, the one that comes in,
    # relu's and tanh's results made again, tanh's gradient and relu's.
    "reentrant": (lambda: partial(checkpoint, block, use_reentrant=True), 4, 9),
    # Here what was made again goes as soon as its node has run.
    "non-reentrant": (lambda: partial(checkpoint, block, use_reentrant=False), 4, 8),
    "saves relu": (lambda: saving(torch.ops.aten.relu.default), 8, 10),
    # tanh's result is saved as well as returned; that is one tensor.
    "saves tanh": (lambda: saving(torch.ops.aten.tanh.default), 4, 8),
}


@computed_or_dry
@pytest.mark.parametrize("name", WAYS)
def test_what_is_kept_and_the_peak(name: str, *, compute: bool) -> None:
    make, kept, peak = WAYS[name]
    run = make()
    with simulate("24GiB", compute=compute):
        x, w = (torch.randn(SHAPE, device="cuda", requires_grad=True) for _ in range(2))
        begin = torch.cuda.memory_allocated()
        assert begin == 2 * MIB
        h = x
        for _ in range(BLOCKS):
            h = run(h, w)
        assert torch.cuda.memory_allocated() - begin == kept * MIB
        torch.cuda.reset_peak_memory_stats()
        h.sum().backward()
        # The sum and its gradient are 512 bytes each.
        assert torch.cuda.max_memory_allocated() - begin == peak * MIB + 1024
        # The last block's result, and the gradients of x and w.
        assert torch.cuda.memory_allocated() - begin == 3 * MIB
        if compute:
            wanted = gradients_without(x.detach().cpu(), w.detach().cpu())
            assert torch.equal(x.grad.cpu(), wanted[0])
            assert torch.equal(w.grad.cpu(), wanted[1])
        del h


def gradients_without(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.requires_grad_()
    w.requires_grad_()
    h = x
    for _ in range(BLOCKS):
        h = block(h, w)
    return torch.autograd.grad(h.sum(), (x, w))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_sequence_keeps_one_result_a_segment(*, use_reentrant: bool) -> None:
    layers = [torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()) for _ in range(BLOCKS)]
    with simulate("24GiB", compute=False):
        x = torch.randn(SHAPE, device="cuda", requires_grad=True)
        model = torch.nn.Sequential(*layers)
        kept = {}
        for segments in (1, 2, 4):
            h = checkpoint_sequential(model, segments, x, use_reentrant=use_reentrant)
            kept[segments] = torch.cuda.memory_allocated() // MIB - 1
            del h
        # All segments but the last are checkpointed and keep their argument, the first's being x;
        # the last keeps two results a layer, and not its argument.
        assert kept == {1: 8, 2: 4, 4: 2 + 2}


def test_random_numbers_are_the_same_again() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(SHAPE, device="cuda"))
        return x * drawn[-1]

    for use_reentrant in (True, False):
        drawn: list[torch.Tensor] = []
        with simulate("24GiB"):
            x = torch.ones(SHAPE, device="cuda", requires_grad=True)
            checkpoint(noisy, x, use_reentrant=use_reentrant).sum().backward()
            assert len(drawn) == 2
            assert torch.equal(*drawn)
            assert torch.equal(x.grad, drawn[0])
            drawn.clear()


def test_lines_that_run_again_count_again() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        return y.tanh()

    with simulate("24GiB", compute=False), LineProfiler(part) as profiler:
        x = torch.randn(SHAPE, device="cuda", requires_grad=True)
        checkpoint(part, x, use_reentrant=True).sum().backward()
    [table] = profiler.display(None, ["hits", "delta"]).report.tables
    assert [table.rows[line] for line in sorted(table.rows)] == [
        (2, 0),
        (2, MIB),  # the mean of both hits
        (2, MIB),
    ]
