"""Memory in which reductions stage partial results."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, peak_beyond_results, randn, temporaries

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.core.reduction_workspace import Kernel, reduction_of, staging_of


def staged_columns(accumulated, blocks=98):
    """The staging memory of the reduction of 50,000 rows of 30 columns.

    A block is 8 threads wide, and each makes 2 of the 30 results: 2 blocks stand side by side, with
    a semaphore each. 32 threads share the rows, 1,563 each: at 16 rows at least, 98 blocks share
    them, or fewer where the GPU holds fewer.
    """
    return temporaries(blocks * 30 * (8 * 2) * accumulated, 2 * 4)


def staged_million(accumulated):
    """The same for 10**6 numbers: 512 threads with 16 numbers make 123 blocks."""
    return temporaries(123 * accumulated, 4)


@pytest.mark.parametrize(("gpu", "blocks"), [("a100", 98), ("t4", 40 * 4 // 2), ("h100", 98)])
@pytest.mark.parametrize(
    ("call", "accumulated"),
    [
        (lambda x: x.sum(0), 4),
        (lambda x: x.mean(0), 4),
        (lambda x: x.nansum(0), 4),
        (lambda x: x.prod(0), 4),
        (lambda x: x.norm(dim=0), 4),
        (lambda x: torch.linalg.vector_norm(x, dim=0), 4),
        (lambda x: x.amax(0), 4),
        (lambda x: x.argmin(0), 16),
        (lambda x: x.var(0), 16),
        (lambda x: x.std(0), 16),
    ],
)
def test_one_result_is_staged_by_what_it_accumulates(call, accumulated, gpu, blocks):
    found = events(call, lambda: randn(50_000, 30), gpu=gpu, compute=False)
    assert found[1:] == staged_columns(accumulated, blocks)


def test_two_results_are_staged_once():
    for call, accumulated in (
        (lambda x: x.max(0), 16),
        (lambda x: x.aminmax(dim=0), 8),
        (lambda x: torch.var_mean(x, 0), 16),
        (lambda x: torch.std_mean(x, 0), 16),
    ):
        found = events(call, lambda: randn(50_000, 30), compute=False)
        assert found[2:] == staged_columns(accumulated)


@pytest.mark.parametrize(
    ("dtype", "call", "accumulated"),
    [
        (torch.float16, lambda x: x.sum(), 4),
        (torch.bfloat16, lambda x: x.sum(dtype=torch.float32), 4),
        (torch.float16, lambda x: x.max(), 2),
        (torch.float64, lambda x: x.sum(), 8),
        (torch.float64, lambda x: x.var(), 32),
    ],
)
def test_half_types_are_summed_in_float(dtype, call, accumulated):
    found = events(call, lambda: randn(10**6, dtype=dtype), compute=False)
    assert found[1:] == staged_million(accumulated)


def test_what_is_of_another_type_is_cast_first():
    found = events(lambda x: x.mean(dtype=torch.float32), lambda: indices(1000))
    assert found == [4, 4000, -4000]
    assert events(lambda x: x.sum(), lambda: indices(1000).int()) == [8, 8000, -8000]


def test_what_is_not_zero_is_counted_in_a_mask():
    found = events(torch.count_nonzero, lambda: indices(1000))
    assert found == [1000, 8, 8000, -8000, -1000]
    assert events(torch.count_nonzero, lambda: indices(1000) > 0) == [8, 8000, -8000]


def test_logsumexp_keeps_the_exponentials_and_what_they_are_relative_to():
    rows, columns = 30, 50_000
    values, all_of_them = rows * 4, rows * columns * 4
    found = events(lambda x: x.logsumexp(1), lambda: randn(rows, columns), compute=False)
    assert found == [
        *(values, values, rows, -rows, -values),
        *(all_of_them, values, -all_of_them, -values),
    ]


@computed_or_dry
def test_logsumexp_of_integers_converts_them_first(compute):
    found = events(lambda x: x.logsumexp(1), lambda: indices(8, 32), compute=compute)
    of_floats = events(lambda x: x.logsumexp(1), lambda: randn(8, 32), compute=compute)
    assert found == [1024, *of_floats, -1024]


def test_a_distance_is_the_norm_of_a_difference():
    found = events(torch.dist, lambda: randn(10**6), lambda: randn(10**6))
    assert found == [4 * 10**6, 4, *staged_million(4), -4 * 10**6]


@pytest.mark.parametrize(("count", "parts"), [(2**29, 1), (2**29 + 1, 2), (2**31, 4)])
def test_offsets_beyond_32_bits_are_reduced_in_parts(count, parts):
    found = events(lambda x: x.sum(), lambda: torch.zeros(count, device="cuda"), compute=False)
    [size, *rest] = found
    assert size == 4
    assert len(rest) == 4 * parts
    blocks = count // parts // (512 * 256)  # 512 threads with the most numbers that one adds up
    halves = temporaries(blocks * 4, 4)
    assert rest[:2] == halves[:2]
    assert all(sum(rest[4 * part : 4 * part + 4]) == 0 for part in range(parts))


@pytest.mark.parametrize(
    ("call", "accumulator"),
    [
        (lambda x: x.sum(1), 4),  # halves are accumulated in float
        (lambda x: x.argmax(1), 16),
        (lambda x: x.var(1), 16),
    ],
)
def test_partial_results_that_no_result_holds_are_kept_meanwhile(call, accumulator):
    make = lambda: torch.zeros(2**15, 2**16, dtype=torch.float16, device="cuda")  # noqa: E731
    found = events(call, make, gpu="b200", compute=False)
    assert found[1:] == temporaries(2**15 * accumulator)


def test_float_sums_in_parts_keep_partial_results_in_the_result():
    make = lambda: torch.zeros(2**15, 2**16, device="cuda")  # noqa: E731
    assert events(lambda x: x.sum(1), make, gpu="b200", compute=False) == [2**15 * 4]


@pytest.mark.parametrize(
    ("sizes", "strides", "reduced", "element", "staged"),
    [  # each as recorded on an H100
        ((512, 10_000), (1, 512), [1], 16, (164626432, 16)),
        ((4, 128, 10_000), (128, 1, 512), [2], 4, (41156608, 16)),
        ((512, 2560), (1, 512), [1], 4, (10485760, 16)),
        ((8, 4096, 16), (65536, 16, 1), [0, 1, 2], 4, (256, 4)),
        ((512, 2560), (2560, 1), [1], 4, None),
        ((512, 2560), (2560, 1), [0], 4, None),
        ((), (), [], 4, None),
    ],
)
def test_reductions_stage_what_was_recorded(sizes, strides, reduced, element, staged):
    reduction = reduction_of(sizes, strides, reduced)
    assert staging_of(PRESETS["h100"], reduction, Kernel(element)) == staged


def test_a_sum_of_another_type_is_cast_first(a100):
    mask = torch.ones(1024, 1024, dtype=torch.bool, device="cuda")
    half = torch.ones(1024, 1024, dtype=torch.float16, device="cuda")
    assert peak_beyond_results(lambda: mask.sum(1)) == 8 * 2**20
    assert peak_beyond_results(lambda: half.sum(1, dtype=torch.float32)) == 0


pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
def test_a_trace_is_the_sum_of_a_diagonal(compute):
    assert events(torch.trace, lambda: randn(4, 4), compute=compute) == [4]
    assert events(torch.trace, lambda: indices(4, 4).int(), compute=compute) == [8, 32, -32]
    count = 10**6
    band = [lambda: torch.zeros(count, device="cuda").as_strided((count, count), (1, 0))]
    assert events(torch.trace, *band, compute=compute) == [4, *temporaries(123 * 4, 4)]


@computed_or_dry
def test_a_trace_of_a_mask_is_a_number(compute):
    mask = [lambda: torch.ones(4, 4, dtype=torch.bool, device="cuda")]
    assert events(torch.trace, *mask, compute=compute) == [8, 32, -32]
    with simulate("1GiB"):
        assert torch.trace(mask[0]()).item() == 4
        with pytest.raises(RuntimeError, match="expected a matrix"):
            torch.trace(torch.ones(2, 2, 2, device="cuda"))


@computed_or_dry
def test_a_trace_that_is_written_is_made_first(compute):
    given = [lambda: randn(9, 9), lambda: randn(1).squeeze()]
    written = events(lambda x, out: aten.trace.out(x, out=out), *given, compute=compute)
    assert written == [4, -4]


@computed_or_dry
def test_what_is_true_of_all_is_reduced(compute):
    make = [lambda: torch.ones(10**7, dtype=torch.bool, device="cuda")]
    staging = events(lambda x: x.all(), *make, compute=compute)[1:]
    assert staging
    for op in (aten._is_all_true, aten._is_any_true):
        assert events(op, *make, compute=compute) == [1, *staging]


@computed_or_dry
def test_an_exponential_of_one_number_is_reduced(compute):
    found = events(lambda x: x.logsumexp(0), lambda: randn(1).squeeze(), compute=compute)
    assert found == [4, 4, 1, -1, -4, 4, 4, -4, -4]


def test_a_sum_that_is_written_stages_as_much():
    def summed(source, result):
        return torch.sum(source, 0, out=result)

    made = events(lambda x: x.sum(0), lambda: torch.randn(10**6, 1, device="cuda"))
    make = [lambda: torch.randn(10**6, 1, device="cuda"), lambda: torch.zeros(1, device="cuda")]
    assert events(summed, *make) == made[1:] != []
