"""What reductions stage: by dtype, by dimension, and in parts where 32 bits do not reach."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, indices, randn, temporaries

from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.reduce_config import reduction_of, staging_of


def staged(shape, reduced, element=4, gpu="a100", vector=4):
    strides = torch.empty(shape, device="meta").stride()
    staging = staging_of(reduction_of(shape, strides, reduced), PRESETS[gpu], element, 512, vector)
    return [] if staging is None else temporaries(*staging)


@pytest.mark.parametrize("gpu", ["a100", "t4", "h100"])
@pytest.mark.parametrize(
    ("call", "element", "vector"),
    [
        (lambda x: x.sum(0), 4, 4),
        (lambda x: x.mean(0), 4, 4),
        (lambda x: x.nansum(0), 4, 4),
        (lambda x: x.prod(0), 4, 4),
        (lambda x: x.norm(dim=0), 4, 4),
        (lambda x: torch.linalg.vector_norm(x, dim=0), 4, 4),
        (lambda x: x.amax(0), 4, 4),
        (lambda x: x.argmin(0), 16, 4),
        (lambda x: x.var(0), 16, 2),
        (lambda x: x.std(0), 16, 2),
    ],
)
def test_one_result_is_staged_by_what_it_accumulates(call, element, vector, gpu):
    found = events(call, lambda: randn(50_000, 30), gpu=gpu, compute=False)
    expected = staged((50_000, 30), [0], element, gpu, vector)
    assert len(expected) == 4
    assert found[1:] == expected


def test_two_results_are_staged_once():
    for call, element, vector in (
        (lambda x: x.max(0), 16, 4),
        (lambda x: x.aminmax(dim=0), 8, 4),
        (lambda x: torch.var_mean(x, 0), 16, 2),
        (lambda x: torch.std_mean(x, 0), 16, 2),
    ):
        found = events(call, lambda: randn(50_000, 30), compute=False)
        assert found[2:] == staged((50_000, 30), [0], element, vector=vector)


@pytest.mark.parametrize(
    ("dtype", "call", "element"),
    [
        (torch.float16, lambda x: x.sum(), 4),
        (torch.bfloat16, lambda x: x.sum(dtype=torch.float32), 4),
        (torch.float16, lambda x: x.max(), 2),
        (torch.float64, lambda x: x.sum(), 8),
        (torch.float64, lambda x: x.var(), 32),
    ],
)
def test_half_types_are_summed_in_float(dtype, call, element):
    vector = 2 if element == 32 else 4
    found = events(call, lambda: randn(10**6, dtype=dtype), compute=False)
    assert found[1:] == staged((10**6,), [0], element, vector=vector)


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
    largest = staged((rows, columns), [1])
    found = events(lambda x: x.logsumexp(1), lambda: randn(rows, columns), compute=False)
    assert found == [
        *(values, *largest, values, rows, -rows, -values),
        *(all_of_them, values, *largest, -all_of_them, -values),
    ]


def test_a_distance_is_the_norm_of_a_difference():
    found = events(torch.dist, lambda: randn(10**6), lambda: randn(10**6))
    assert found == [4 * 10**6, 4, *staged((10**6,), [0]), -4 * 10**6]


@pytest.mark.parametrize(("count", "parts"), [(2**29, 1), (2**29 + 1, 2), (2**31, 4)])
def test_offsets_beyond_32_bits_are_reduced_in_parts(count, parts):
    found = events(lambda x: x.sum(), lambda: torch.zeros(count, device="cuda"), compute=False)
    [size, *rest] = found
    assert size == 4
    assert len(rest) == 4 * parts
    halves = staged((count // parts,), [0])
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
