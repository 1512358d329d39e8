"""Temporaries of Fourier transforms."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn, temporaries

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


def complexes(*shape):
    return randn(*shape, dtype=torch.complex64)


@computed_or_dry
def test_a_transform_reads_what_its_plan_can_tell(compute):
    def first(x):
        return torch.fft.rfft(x, dim=0)

    def last(x):
        return torch.fft.rfft(x)

    half = 8 * 5 * 8
    assert events(last, lambda: randn(8, 8), compute=compute) == [half]
    assert events(first, lambda: randn(8, 8), compute=compute) == [half]
    # Two batch dimensions that do not collapse into one are copied.
    cut = [lambda: randn(4, 8, 8)[:, ::2]]
    assert events(first, *cut, compute=compute) == [3 * 4 * 8 * 8, *temporaries(4 * 4 * 8 * 4)]
    # As is what lies expanded, and numbers that begin amid a complex one.
    expanded = events(last, lambda: randn(8).expand(8, 8), compute=compute)
    assert expanded == [half, *temporaries(256)]
    amid = events(last, lambda: randn(9)[1:], compute=compute)
    assert amid == [5 * 8, *temporaries(32)]


@computed_or_dry
def test_rows_that_are_no_multiple_apart_are_cloned(compute):
    def transform(x):
        return torch.fft.fft2(x)

    size = 4 * 4 * 8
    for row, copies in ((8, []), (9, [size, -size])):
        make = [lambda step=row: complexes(64).as_strided((4, 4), (step, 2))]
        assert events(transform, *make, compute=compute) == [size, *copies]


@computed_or_dry
def test_a_transform_to_real_numbers_copies_its_input(compute):
    found = events(torch.fft.irfft, lambda: complexes(6, 5), compute=compute)
    assert found == [6 * 8 * 4, *temporaries(6 * 5 * 8)]
    volume = events(torch.fft.irfftn, lambda: complexes(4, 4, 3), compute=compute)
    # Its first two dimensions come first: they are transformed alone, into the copy.
    assert volume == [4 * 4 * 4 * 4, *temporaries(4 * 4 * 3 * 8)]


@computed_or_dry
def test_more_than_three_dimensions_are_transformed_in_stages(compute):
    size = 2**4 * 8
    found = events(torch.fft.fftn, lambda: complexes(2, 2, 2, 2), compute=compute)
    assert found == [size, *temporaries(size)]
    reals = events(torch.fft.rfftn, lambda: randn(4, 4, 4), compute=compute)
    assert reals == [4 * 4 * 3 * 8, *temporaries(4 * 4 * 3 * 8)]
    image = events(torch.fft.rfft2, lambda: randn(3, 4, 4), compute=compute)
    assert image == [3 * 4 * 3 * 8]


@computed_or_dry
def test_a_result_lies_in_the_order_in_which_cufft_took_the_dimensions(compute):
    with simulate("a100", compute=compute):
        reals = randn(80, 70, 64)
        # The first plan transforms the last dimension, and the last one those before it.
        assert torch.fft.rfftn(reals, dim=(0, 1)).stride() == (1, 80, 80 * 36)
        assert torch.fft.rfftn(reals).stride() == (70, 1, 80 * 70)
        assert torch.fft.rfft2(reals).stride() == (70 * 33, 33, 1)
        # Those before it lie as they did, in whatever order they are named.
        named = torch.fft.rfftn(randn(3, 5, 7, 8), dim=(1, 0, 2, 3))
        assert named.stride() == (5 * 7, 7, 1, 3 * 5 * 7)
        assert torch.fft.fft(reals, dim=0).stride() == (1, 80 * 64, 80)
        signals = complexes(8, 7, 6, 16, 16)
        assert torch.fft.fftn(signals).stride() == (7, 1, 7 * 8 * 256, 7 * 8 * 16, 7 * 8)
        assert torch.fft.irfftn(signals, dim=(0, 1)).stride() == (12, 1, 96 * 256, 96 * 16, 96)


def test_a_result_has_the_values_of_the_cpu():
    with simulate("a100"):
        reals = randn(8, 7, 6)
        expected = torch.fft.rfftn(reals.cpu())
        torch.testing.assert_close(torch.fft.rfftn(reals).cpu(), expected)


@computed_or_dry
def test_a_given_result_is_written_from_another(compute):
    def into(x, result):
        return torch.fft.fft(x, out=result)

    make = [lambda: complexes(4, 4), lambda: complexes(4, 4)]
    assert events(into, *make, compute=compute) == [128, -128]


def test_the_work_area_of_a_transform_is_named():
    with simulate("a100") as machine:
        torch.fft.rfft(randn(8))
        assert machine.unmodelled == {}
        assert (
            machine.approximations[0].uncounted["aten._fft_r2c.default", "cuFFT work areas"].calls
            == 1
        )
