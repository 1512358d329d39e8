"""Layer norm: statistics in single precision, temporaries, and values."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of
from support.op_memory import aten, events, randn, temporaries
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
    [(HALF, HALF), (HALF, None), (BFLOAT, BFLOAT), (SINGLE, SINGLE)],
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


def layer_norm_gradient(rows, columns, dtype=torch.float32, **options):
    width = 4 if dtype in (torch.float16, torch.bfloat16) else dtype.itemsize
    statistics = torch.float32 if width == 4 else dtype
    found = events(
        lambda g, x, m, r, w: aten.native_layer_norm_backward(
            g, x, [columns], m, r, w, w, [True, True, True]
        ),
        lambda: randn(rows, columns, dtype=dtype),
        lambda: randn(rows, columns, dtype=dtype),
        lambda: randn(rows, 1, dtype=statistics),
        lambda: randn(rows, 1, dtype=statistics),
        lambda: randn(columns, dtype=dtype),
        compute=False,
        **options,
    )
    results = [rows * columns * dtype.itemsize, columns * dtype.itemsize, columns * dtype.itemsize]
    assert found[:3] == results
    return found[3:]


@pytest.mark.parametrize(
    ("rows", "columns", "gpu"),
    [(65536, 64, "a100"), (70000, 54 * 32, "a100"), (70000, 20 * 32, "t4"), (100, 64, "a100")],
)
def test_a_layer_norm_of_few_rows_or_many_columns_sums_at_once(rows, columns, gpu):
    assert layer_norm_gradient(rows, columns, gpu=gpu) == []


@pytest.mark.parametrize(
    ("rows", "columns", "gpu", "dtype", "staged"),
    [  # blocks of threads for each result, by the results of a block; a semaphore for each row
        (65537, 64, "a100", torch.float32, [17 * 64 * (16 * 4) * 4, 4]),
        (70000, 54 * 32 - 1, "a100", torch.bfloat16, []),
        (70000, 19 * 32, "t4", torch.float32, [27 * 608 * (32 * 4) * 4, 5 * 4]),
        (2 * 10**6, 1024, "h100", torch.float64, [16 * 1024 * (32 * 4) * 8, 8 * 4]),
    ],
)
def test_a_layer_norm_of_many_rows_sums_in_two_steps(rows, columns, gpu, dtype, staged):
    blocks = min(32768 // -(-columns // 32), -(-rows // 32))
    partial = blocks * columns * dtype.itemsize
    weight = columns * dtype.itemsize
    summed = [weight, *temporaries(*staged), -weight]
    assert layer_norm_gradient(rows, columns, dtype, gpu=gpu) == [
        partial, partial, *summed, *summed, -partial, -partial,
    ]  # fmt: skip


def test_layer_norm_makes_its_input_contiguous_before_its_results():
    found = events(
        lambda x: aten.native_layer_norm(x, [8], None, None, 0.1), lambda: randn(8, 4).t()
    )
    assert found == [128, 128, 16, 16, -128]


def test_the_gradient_of_the_input_is_contiguous_whatever_the_gradient_of_the_output_is():
    def program():
        tensor = torch.randn(8, ROWS, SIZE, device="cuda", requires_grad=True)
        normed = F.layer_norm(tensor, (SIZE,))
        columns = torch.empty(8, SIZE, ROWS, device="cuda").transpose(1, 2)
        (gradient,) = torch.autograd.grad(normed, tensor, columns)
        assert gradient.is_contiguous()
        gradient.transpose(1, 2).contiguous()

    assert events_of(program, compute=True) == events_of(program, compute=False)
