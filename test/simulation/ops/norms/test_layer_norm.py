"""Layer norm of half precision: its statistics are in single precision, as on CUDA."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of
from torch import nn
from torch.nn import functional as F

from pytorch_memlab import simulate

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
ROWS, SIZE = 2000, 64


@computed_or_dry
@pytest.mark.parametrize(("dtype", "width"), [(HALF, 4), (BFLOAT, 4), (SINGLE, 4), (DOUBLE, 8)])
def test_each_row_keeps_a_mean_and_a_deviation(dtype, width, compute):
    with simulate("1GiB", compute=compute):
        norm = nn.LayerNorm(SIZE).to("cuda", dtype)
        tensor = torch.randn(ROWS, SIZE, device="cuda", dtype=dtype, requires_grad=True)
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = norm(tensor)
        kept = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
        assert kept == result.nbytes + 2 * ROWS * width


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [(HALF, HALF), (HALF, SINGLE), (HALF, None), (BFLOAT, BFLOAT), (SINGLE, SINGLE)],
)
def test_results_and_gradients_are_a_cpus(dtype, weights):
    torch.manual_seed(0)
    tensors = [torch.randn(40, SIZE, dtype=dtype)]
    if weights is not None:
        tensors += [torch.randn(SIZE, dtype=weights) for _ in range(2)]

    def run(parts):
        leaves = [part.detach().requires_grad_() for part in parts]
        result = F.layer_norm(leaves[0], (SIZE,), *leaves[1:])
        result.sin().sum().backward()
        return [result.detach(), *(leaf.grad for leaf in leaves)]

    expected = run(tensors)
    with simulate("1GiB"):
        found = [one.cpu() for one in run([one.cuda() for one in tensors])]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_the_allocator_sees_the_same_without_arithmetic():
    def program():
        norm = nn.LayerNorm(SIZE).to("cuda", HALF)
        for rows in (10, ROWS):
            tensor = torch.randn(rows, SIZE, device="cuda", dtype=HALF, requires_grad=True)
            norm(tensor).float().sum().backward()
        with torch.no_grad():
            norm(tensor)

    computed = events_of(program, compute=True)
    assert len(computed) > 20
    assert events_of(program, compute=False) == computed
