"""Copies between a GPU and the CPU: where one is staged."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn

from pytorch_memlab import simulate


@computed_or_dry
def test_copies_to_other_layouts_are_staged_on_the_gpu(compute):
    def to(target, source):
        return target.copy_(source)

    matrix = lambda: randn(30, 20)  # noqa: E731
    transposed = lambda: randn(20, 30).t()  # noqa: E731
    host = lambda: torch.randn(30, 20)  # noqa: E731
    assert events(to, matrix, host, compute=compute) == []
    assert events(to, transposed, host, compute=compute) == [2400, -2400]
    assert events(to, matrix, lambda: host().double(), compute=compute) == []
    later = lambda target, source: target.copy_(source, non_blocking=True)  # noqa: E731
    assert events(later, matrix, lambda: host().double(), compute=compute) == [4800, -4800]
    assert events(to, transposed, matrix, compute=compute) == []
    assert events(lambda x: x.cuda(), lambda: host().t(), compute=compute) == [2400]


HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


@computed_or_dry
@pytest.mark.parametrize(
    ("copy", "staged"),
    [
        (lambda x: x.cpu(), []),
        (lambda x: x.t().cpu(), []),  # its copy is laid out as it is
        (lambda x: x[:, ::2].cpu(), [40 * 20 * 4]),
        (lambda x: x[:, ::2].to("cpu"), [40 * 20 * 4]),
        (lambda x: x[:, ::2].to("cpu", torch.float64), [40 * 20 * 4]),
        (lambda x: x.to("cpu", torch.float64), []),
        (lambda x: x.to("cpu", torch.float64, non_blocking=True), [40 * 40 * 8]),
        (lambda x: x[:, ::2].to("cpu", HALF, non_blocking=True), [40 * 20 * 2]),
        (lambda x: x.t().to("cpu", HALF, non_blocking=True), [40 * 40 * 2] * 2),
        (lambda x: x[0].expand(40, 40).cpu(), [40 * 40 * 4]),
        (lambda x: x.t()[3, 5].item(), []),
    ],
)
def test_a_copy_to_the_host_is_staged_where_it_lies_otherwise(copy, staged, compute):
    found = events(copy, lambda: randn(40, 40), compute=compute)
    assert found == [*staged, *(-size for size in reversed(staged))]


def test_a_copy_is_staged_on_the_gpu_that_it_leaves():
    with simulate("1GiB", 2):
        tensor = torch.randn(1000, 1000, device="cuda:1")[:, ::2]
        for index in range(2):
            torch.cuda.reset_peak_memory_stats(index)
        assert tensor.cpu().shape == (1000, 500)
        assert torch.cuda.max_memory_allocated(0) == 0
        assert torch.cuda.max_memory_allocated(1) == 4_000_256 + 2_000_384
