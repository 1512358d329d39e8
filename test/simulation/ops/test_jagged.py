"""Temporaries of conversions between jagged and padded rows."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn

pytestmark = [
    pytest.mark.usefixtures("no_values_in_dry_runs"),
    pytest.mark.skipif(
        not torch._C._dispatch_has_kernel_for_dispatch_key(
            "aten::_jagged_to_padded_dense_forward", "CPU"
        ),
        reason="this torch has no kernels of these conversions for CPUs",
    ),
]


def offsets(*ends):
    return lambda: torch.tensor([0, *ends], device="cuda")


@computed_or_dry
def test_jagged_rows_are_padded_into_their_result(compute):
    def pad(values, of):
        return aten._jagged_to_padded_dense_forward(values, [of], [3])

    make = [lambda: randn(5, 4), offsets(2, 5)]
    assert events(pad, *make, compute=compute) == [2 * 3 * 4 * 4]


@computed_or_dry
@pytest.mark.parametrize(
    ("dtype", "columns", "places"),
    [(torch.float16, 8, [20, 20]), (torch.float16, 4, []), (torch.bfloat16, 8, [])],
)
def test_padded_rows_are_found_before_they_are_joined(dtype, columns, places, compute):
    def unpad(dense, of):
        return aten._padded_dense_to_jagged_forward(dense, [of], 5)

    size = 5 * columns * 2
    make = [lambda: randn(2, 3, columns, dtype=dtype), offsets(2, 5)]
    found = events(unpad, *make, compute=compute)
    assert found == [size, size, *places, *(-nbytes for nbytes in places), -size]


def test_rows_that_nobody_counted_are_counted():
    def unpad(dense, of):
        return aten._padded_dense_to_jagged_forward(dense, [of])

    found = events(unpad, lambda: randn(2, 3, 4), offsets(2, 5))
    assert found == [8, -8, 80, 80, -80]


@pytest.mark.parametrize(("batch", "places"), [(4094, [16, 16]), (4095, [])])
def test_offsets_that_fill_the_shared_memory_are_not_searched(batch, places):
    def unpad(dense, of):
        return aten._padded_dense_to_jagged_forward(dense, [of], 4)

    make = [
        lambda: randn(batch, 1, 8, dtype=torch.float16),
        lambda: torch.arange(batch + 1, device="cuda").clamp(max=4),
    ]
    found = events(unpad, *make, gpu="t4")
    assert found == [64, 64, *places, *(-nbytes for nbytes in places), -64]
