"""Calls of ops whose kernels take memory, and what the allocator sees of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator

aten = torch.ops.aten


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def indices(*shape: int, below: int = 10) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), device="cuda").remainder(below).view(shape)


def events(
    call: Callable[..., Any], *make: Callable[[], Any], gpu: str = "a100", compute: bool = True
) -> list[int]:
    """Bytes that a call asks the allocator for, and negative, those it gives back, in order.

    Args:
        call: takes what ``make`` returns; what it returns is kept until the end.
        make: makes each of its arguments, unobserved.
        gpu: simulated.
        compute: with arithmetic.
    """
    seen: list[int] = []
    sizes: dict[int, int] = {}
    malloc, free = CachingAllocator.malloc, CachingAllocator.free

    def spied_malloc(self: CachingAllocator, size: int, stream: int = 0) -> int:
        address = malloc(self, size, stream)
        if size:
            sizes[address] = size
            seen.append(size)
        return address

    def spied_free(self: CachingAllocator, address: int) -> None:
        if address in sizes:
            seen.append(-sizes.pop(address))
        free(self, address)

    with simulate(gpu, compute=compute) as machine, pytest.MonkeyPatch.context() as patches:
        machine.allocations.sweep_at_once()
        arguments = [one() for one in make]
        patches.setattr(CachingAllocator, "malloc", spied_malloc)
        patches.setattr(CachingAllocator, "free", spied_free)
        result = call(*arguments)
        found = list(seen)
        del result
    return found


def peak_beyond_results(call: Callable[[], Any]) -> int:
    """Bytes that a call takes at most beyond what stays allocated after it."""
    torch.cuda.reset_peak_memory_stats()
    result = call()
    beyond = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return beyond


def temporaries(*sizes: int) -> list[int]:
    """The events of temporaries that are allocated in order and freed in the opposite order."""
    return [*sizes, *(-size for size in reversed(sizes))]


def storage_of(*buffers: int) -> int:
    """Bytes that an algorithm of CUB asks for: buffers in steps of 256, and 255 to align them."""
    return sum(-(-nbytes // 256) * 256 for nbytes in buffers) + 255


def tiles_of(count: int, tile: int, state: int = 8) -> int:
    """Storage of CUB's scans and selections: a state of each tile, and of 32 before the first."""
    return storage_of((-(-count // tile) + 32) * state)


CALLS: dict[str, Callable[[], Any]] = {
    "sum": lambda: randn(8, 4096, 16).sum(),
    "sum of rows": lambda: randn(1000, 1000).sum(1),
    "sum of a mask": lambda: (randn(100, 100) > 0).sum(0),
    "mean of integers": lambda: indices(1000).mean(dtype=torch.float32),
    "nansum": lambda: randn(1000, 100).nansum(0),
    "prod": lambda: randn(1000, 100).prod(0),
    "norms": lambda: (torch.linalg.vector_norm(randn(3000)), randn(30, 30).norm(dim=1)),
    "max": lambda: (randn(1000, 100).max(0), randn(1000).max(), randn(100, 100).amax(1)),
    "min": lambda: (randn(1000, 100).min(0), randn(1000).min(), randn(100, 100).amin(1)),
    "argmax": lambda: (randn(1000, 100).argmax(0), randn(1000).argmin()),
    "aminmax": lambda: (randn(1000, 100).aminmax(dim=0), randn(100_000).aminmax()),
    "all and any": lambda: ((randn(100, 100) > 0).all(), (randn(100, 100) > 0).any(1)),
    "var and std": lambda: (randn(100, 100).var(0), torch.std_mean(randn(100, 100), 1)),
    "count_nonzero": lambda: (torch.count_nonzero(randn(100, 100)), randn(9, 9).count_nonzero(1)),
    "dist": lambda: torch.dist(randn(100, 100), randn(100)),
    "logsumexp": lambda: (randn(100, 100).logsumexp(1), randn(100, 100).logsumexp(0, True)),
    "sort": lambda: (randn(10, 5000).sort(), randn(300, 5000).sort(0), randn(9).sort()),
    "sort.stable": lambda: randn(200, 5000).sort(dim=1, stable=True),
    "argsort": lambda: (randn(6000).argsort(), randn(10, 10).msort()),
    "topk": lambda: (randn(4, 50_000).topk(5), randn(2, 200_000).topk(5), randn(9, 9).topk(3, 0)),
    "kthvalue": lambda: (randn(10, 10).t().kthvalue(3), randn(10, 10).kthvalue(3)),
    "median": lambda: (randn(99, 99).median(), randn(9, 9).t().median(0), randn(9).nanmedian()),
    "mode": lambda: randn(10, 10).mode(0),
    "cumsum": lambda: (
        randn(10_000).cumsum(0),
        indices(9, 9).int().cumsum(0),
        randn(5, 5).cumsum(1),
    ),
    "cumprod": lambda: (randn(10_000).cumprod(0), randn(9, 9).t().cumprod(0)),
    "logcumsumexp": lambda: randn(10_000).logcumsumexp(0),
    "cummax": lambda: (randn(9, 9).t().cummax(0), randn(9, 9).cummin(1)),
    "softmax": lambda: (randn(9, 9).softmax(1), randn(9, 9).t().log_softmax(1)),
    "softmax's gradient": lambda: _gradient(lambda x: x.softmax(1), 9, 9),
    "log_softmax's gradient": lambda: _gradient(lambda x: x.log_softmax(1), 9, 9),
    "layer norm": lambda: _gradient(nn.LayerNorm(64).cuda(), 70_000, 64),
    "layer norm of a transposed": lambda: functional.layer_norm(randn(64, 32).t(), (64,)),
    "group norm": lambda: _gradient(nn.GroupNorm(4, 16).cuda(), 3, 16, 5, 5),
    "group norm of rows": lambda: _gradient(nn.GroupNorm(4, 16).cuda(), 3, 16),
    "embedding": lambda: _embedded(nn.Embedding(100, 32).cuda(), 5000),
    "few embedding rows": lambda: _embedded(nn.Embedding(5, 1024).cuda(), 9000),
    "embedding bag": lambda: _embedded(nn.EmbeddingBag(100, 32, mode="sum").cuda(), 50, 20),
    "frequencies": lambda: _embedded(nn.Embedding(100, 32, scale_grad_by_freq=True).cuda(), 50),
    "norms of many": lambda: torch._foreach_norm([randn(100, 100), randn(70_000)]),
    "largest of many": lambda: torch._foreach_max([randn(100, 100), randn(70_000)]),
    "norms of unlike": lambda: torch._foreach_norm([randn(100, 100), randn(9).double()]),
    "mse_loss": lambda: functional.mse_loss(randn(100, 100), randn(100, 100)),
    "smooth_l1_loss": lambda: functional.smooth_l1_loss(randn(99), randn(99), reduction="sum"),
    "huber_loss": lambda: functional.huber_loss(randn(100, 100), randn(100, 100)),
    "bce": lambda: functional.binary_cross_entropy(
        randn(99, 99).sigmoid(), randn(99, 99).sigmoid()
    ),
    "bce with logits": lambda: functional.binary_cross_entropy_with_logits(
        randn(99, 99), randn(99, 99), pos_weight=randn(99)
    ),
    "cross_entropy": lambda: _gradient(
        lambda x: functional.cross_entropy(x, indices(32), weight=randn(10).abs()), 32, 10
    ),
    "cross_entropy of images": lambda: _gradient(
        lambda x: functional.cross_entropy(x, indices(2, 8, 8)), 2, 10, 8, 8
    ),
    "index": lambda: (
        randn(50, 50)[indices(9)],
        randn(50, 50)[torch.tensor([1, 2])],
        randn(50, 50)[indices(4)[:, None], indices(5)[None]],
    ),
    "index of a mask": lambda: randn(50, 50)[indices(50, 50) > 4],
    "index_put": lambda: _put(lambda x: x.index_put_((indices(99),), randn(99, 9), True)),
    "index_put of a mask": lambda: _put(lambda x: x.__setitem__(indices(99, 9) > 4, randn(5 * 89))),
    "masked fill by index": lambda: _put(lambda x: x.__setitem__(indices(99, 9) > 4, 1.0)),
    "index's gradient": lambda: _gradient(lambda x: x[indices(4096)], 10, 8),
    "nonzero": lambda: (indices(99, 9).nonzero(), torch.nonzero_static(indices(99), size=50)),
    "masked_select": lambda: randn(9, 9).masked_select(indices(9) > 4),
    "masked_scatter": lambda: randn(9, 9).masked_scatter(indices(9) > 4, randn(81)),
    "repeat_interleave": lambda: torch.repeat_interleave(randn(10), indices(10), output_size=45),
    "bincount": lambda: indices(1000).bincount(minlength=20),
    "searchsorted": lambda: torch.searchsorted(randn(9).sort().values, randn(9, 9).t()),
    "bucketize": lambda: torch.bucketize(randn(9).double(), randn(9)),
    "unique": lambda: (indices(999).unique(), indices(999).unique(return_inverse=True)),
    "counts": lambda: indices(999).unique(return_counts=True),
    "unique masks": lambda: (indices(99) > 4).unique(),
    "unique_consecutive": lambda: indices(99).unique_consecutive(return_inverse=True),
    "unique rows": lambda: (indices(9, 9).unique(dim=0), indices(9, 9).unique_consecutive(dim=1)),
    "multinomial": lambda: (
        randn(9, 99).abs().multinomial(1),
        randn(99).abs().multinomial(5),
        randn(99).abs().multinomial(5, replacement=True),
    ),
    "randperm": lambda: torch.randperm(100_000, device="cuda"),
    "copies": lambda: _copies(),
    "ctc_loss": lambda: _ctc(),
}
"""Calls by what they call: each runs with and without arithmetic."""


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> None:
    leaf = randn(*shape).requires_grad_()
    function(leaf).sum().backward()


def _embedded(module: nn.Module, *shape: int) -> None:
    module(indices(*shape, below=5)).sum().backward()


def _put(write: Callable[[torch.Tensor], Any]) -> None:
    write(torch.zeros(99, 9, device="cuda"))


def _copies() -> None:
    host = torch.randn(40, 40)
    device = randn(40, 40)
    device.t().copy_(host)
    device.copy_(host.double(), non_blocking=True)
    host[:, ::2].cuda()
    torch.empty(40, 40).copy_(device.t())


def _ctc() -> None:
    leaf = randn(300, 4, 20).requires_grad_()
    losses, _ = aten._ctc_loss(leaf.log_softmax(2), indices(4, 5) + 1, [300] * 4, [5] * 4)
    losses.sum().backward()
