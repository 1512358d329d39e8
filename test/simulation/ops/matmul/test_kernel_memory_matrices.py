"""What triangular systems, distances, traces, samples, scatters and quantization take."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")

WORKSPACE = 8519680
"""Bytes of a cuBLAS workspace, which is kept."""


# Triangular systems


def solve(a, b):
    return torch.linalg.solve_triangular(a, b, upper=True)


@computed_or_dry
@pytest.mark.parametrize(
    ("count", "rows", "pointers"), [(8, 64, 0), (9, 64, 9), (8, 63, 8), (1, 63, 1), (1, 64, 0)]
)
def test_small_or_many_systems_need_pointers(count, rows, pointers, compute):
    make = [lambda: randn(count, rows, rows), lambda: randn(count, rows, 2)]
    found = events(solve, *make, compute=compute)
    held = [pointers * 8] * 2 if pointers else []
    down = [-nbytes for nbytes in held]
    assert found == [count * rows * 2 * 4, *held, WORKSPACE, *down]


@computed_or_dry
def test_matrices_that_lie_apart_or_for_many_are_copied(compute):
    shared = [lambda: randn(64, 64), lambda: randn(3, 64, 2)]
    matrices, result = 3 * 64 * 64 * 4, 3 * 64 * 2 * 4
    found = events(solve, *shared, compute=compute)
    assert found == [result, matrices, WORKSPACE, -matrices]
    apart = [lambda: randn(64, 128)[:, ::2], lambda: randn(64, 2)]
    found = events(solve, *apart, compute=compute)
    assert found == [result // 3, matrices // 3, WORKSPACE, -matrices // 3]

    def into(a, b, result):
        return torch.linalg.solve_triangular(a, b, upper=True, out=result)

    given = [lambda: randn(64, 64), lambda: randn(64, 4), lambda: randn(64, 8)[:, ::2]]
    assert events(into, *given, compute=compute) == [1024, WORKSPACE, -1024]


@computed_or_dry
@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
def test_a_solution_with_a_copy_of_its_matrix_needs_but_pointers(compute):
    found = events(
        torch.triangular_solve, lambda: randn(4, 2), lambda: randn(4, 4), compute=compute
    )
    assert found == [32, 64, 8, 8, WORKSPACE, -8, -8]


@computed_or_dry
def test_pivots_become_places_and_then_a_matrix(compute):
    def unpack(factors, pivots, **options):
        return aten.lu_unpack(factors, pivots, **options)

    def pivots(*shape):
        return (indices(*shape, below=shape[-1]) + 1).int()

    one = [lambda: randn(4, 4), lambda: pivots(4)]
    assert events(unpack, *one, compute=compute) == [64, 64, 64, 32, -32]
    many = [lambda: randn(3, 4, 4), lambda: pivots(3, 4)]
    found = events(unpack, *many, compute=compute)
    assert found == [192, 192, 192, 32, 96, -32, -96]
    without = events(lambda f, p: unpack(f, p, unpack_pivots=False), *many, compute=compute)
    assert without == [192, 192]


# Bilinear layers


@computed_or_dry
def test_a_bilinear_layer_multiplies_slice_by_slice(compute):
    def multiply(x, w, y):
        return torch.nn.functional.bilinear(x, y, w)

    make = [lambda: randn(6, 5), lambda: randn(3, 5, 4), lambda: randn(6, 4)]
    # Each slice: 6 x 5 by 5 x 4, whose rows are multiplied with those of 6 x 4 and added up.
    products, sums = 6 * 4 * 4, 6 * 4
    found = events(multiply, *make, compute=compute)
    once = [products, sums, -products, -sums]
    assert found == [6 * 3 * 4, products, WORKSPACE, *once[1:], *once, *once]
    apart = [lambda: randn(12, 5)[::2], *make[1:]]
    assert events(multiply, *apart, compute=compute) == found
    turned = [lambda: randn(6, 10)[:, ::2], *make[1:]]
    copied = [products, 6 * 5 * 4, -6 * 5 * 4, *once[1:]]
    first = [products, 6 * 5 * 4, WORKSPACE, -6 * 5 * 4, *once[1:]]
    assert events(multiply, *turned, compute=compute) == [72, *first, *copied, *copied]


# Distances


@computed_or_dry
def test_the_gradient_of_distances_adds_up_each_pair(compute):
    def gradient(g, x, y, d):
        return aten._cdist_backward(g, x, y, 1.0, d)

    make = [
        lambda: randn(50, 40),
        lambda: randn(50, 3),
        lambda: randn(40, 3),
        lambda: randn(50, 40),
    ]
    pairs = 40 * 50 * 3 * 4
    found = events(gradient, *make, compute=compute)
    assert found == [600, pairs, -pairs]
    apart = [lambda: randn(40, 50).t(), *make[1:]]
    found = events(gradient, *apart, compute=compute)
    assert found == [8000, 600, pairs, -pairs, -8000]

    def none(g, x, y, d):
        return aten._cdist_backward(g, x, y, 0.0, d)

    assert events(none, *make, compute=compute) == [600]


@computed_or_dry
def test_the_gradient_of_distances_within_adds_up_each_pair(compute):
    def gradient(g, x, d):
        return aten._pdist_backward(g, x, 2.0, d)

    make = [lambda: randn(45), lambda: randn(10, 3), lambda: randn(45).abs()]
    pairs = 9 * 10 * 3 * 4
    assert events(gradient, *make, compute=compute) == [
        120,
        pairs,
        -pairs,
    ]
    assert events(torch.pdist, lambda: randn(10, 3), compute=compute) == [180]


# Sums


@computed_or_dry
def test_a_trace_is_the_sum_of_a_diagonal(compute):
    assert events(torch.trace, lambda: randn(4, 4), compute=compute) == [4]
    assert events(torch.trace, lambda: indices(4, 4).int(), compute=compute) == [8, 32, -32]
    count = 10**6
    band = [lambda: torch.zeros(count, device="cuda").as_strided((count, count), (1, 0))]
    assert events(torch.trace, *band, compute=compute) == [4, *temporaries(123 * 4, 4)]


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


@computed_or_dry
def test_samples_of_a_distribution_of_distributions_are_divided_by_their_sums(compute):
    found = events(torch._sample_dirichlet, lambda: randn(50, 4).abs(), compute=compute)
    assert found == [800, 200, -200]
    assert events(torch._standard_gamma, lambda: randn(50).abs(), compute=compute) == [200]


# Scatters and masks


@computed_or_dry
@pytest.mark.parametrize(("reduction", "counts"), [("sum", []), ("mean", [40, 16, 4])])
def test_a_mean_counts_what_was_added(reduction, counts, compute):
    def reduce(x, i, y):
        return x.scatter_reduce(0, i, y, reduction)

    make = [lambda: randn(4), lambda: indices(10, below=4), lambda: randn(10)]
    assert events(reduce, *make, compute=compute) == [16, *temporaries(*counts)]

    def write(x, i, y):
        return x.scatter_reduce_(0, i, y, reduction, include_self=False)

    assert events(write, *make, compute=compute) == temporaries(*counts)


def test_a_mask_wider_than_what_it_scatters_into_widens_it():
    make = [lambda: randn(9), lambda: indices(9, 9) > 4, lambda: randn(81)]
    found = events(torch.masked_scatter, *make)
    assert found[:2] == [324, 648]


def test_the_gradient_of_what_is_scattered_is_what_the_mask_selects():
    def gradient(g, mask):
        return aten.masked_scatter_backward(g, mask, [50])

    make = [lambda: randn(10, 10), lambda: indices(10, 10) > 4]
    found = events(gradient, *make)
    assert found == events(torch.masked_select, *make)
    assert 50 * 2 * 8 in found


@computed_or_dry
@pytest.mark.parametrize("invert", [False, True])
def test_each_element_is_compared_with_each_of_a_few(invert, compute):
    def find(x, among):
        return torch.isin(x, among, invert=invert)

    make = [lambda: indices(4, 25), lambda: indices(18)]
    found = events(find, *make, compute=compute)
    assert found == [100, *temporaries(100 * 18, 100)]
    empty = [lambda: indices(0), lambda: indices(3)]
    assert events(find, *empty, compute=compute) == []


@pytest.mark.parametrize(("among", "is_known"), [(18, True), (19, False)])
def test_a_sort_of_many_is_named(among, is_known):
    with simulate("a100") as machine:
        torch.isin(indices(100), indices(among))
        assert machine.unmodelled == {}
        approximations = machine.approximations[0]
    op = "aten.isin.Tensor_Tensor"
    assert (op in approximations.estimated) == is_known
    assert ((op, "memory of sorts of distinct elements") in approximations.uncounted) != is_known


@computed_or_dry
def test_noise_that_lies_apart_is_copied(compute):
    def leak(x, noise):
        return aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)

    make = [lambda: randn(8, 4).t(), lambda: randn(4, 8)]
    assert events(leak, *make, compute=compute) == [128, 128, -128]

    def still(x, noise):
        return aten.rrelu_with_noise(x, noise, 0.1, 0.3, False)

    assert events(still, *make, compute=compute) == [128]


# Quantization


@computed_or_dry
def test_zero_points_of_channels_are_checked_on_the_host(compute):
    def quantize(x, scale, zero):
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 255)

    make = [lambda: randn(4, 5), lambda: torch.ones(5, device="cuda")]
    integers = lambda: torch.zeros(5, dtype=torch.int32, device="cuda")  # noqa: E731
    results = [80, 20, -20]
    found = events(quantize, *make, integers, compute=compute)
    assert found == [4, 4, -4, -4, *results]
    floats = events(quantize, *make, lambda: torch.zeros(5, device="cuda"), compute=compute)
    assert floats == results


@computed_or_dry
def test_simulated_quantization_of_a_tensor_keeps_a_mask(compute):
    def quantize(x):
        return aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, 0, 255)

    assert events(quantize, lambda: randn(4, 5), compute=compute) == [80, 20]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_lies_in_no_format_is_copied_to_be_quantized():
    def quantize(x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    assert events(quantize, lambda: randn(4, 5)) == [20]
    assert events(quantize, lambda: randn(5, 4).t()) == [20, 80, -80]

    def widen(x):
        return x.dequantize()

    assert events(widen, lambda: quantize(randn(4, 5))) == [80]
    assert events(widen, lambda: quantize(randn(4, 5)).t()) == [80, 20, -20]
