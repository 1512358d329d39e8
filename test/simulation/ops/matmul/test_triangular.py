"""Temporaries of triangular systems and of unpacked factors."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


WORKSPACE = 8519680
"""Bytes of a cuBLAS workspace, which is kept."""


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
