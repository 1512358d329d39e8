"""What packed sequences, windows, Fourier transforms and weight norm take besides their results."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn, temporaries

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


def complexes(*shape):
    return randn(*shape, dtype=torch.complex64)


# Packed sequences


@computed_or_dry
def test_runs_of_steps_are_copied_before_they_are_joined(compute):
    def pack(x):
        return torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3, 3, 1])

    found = events(lambda x: pack(x).data, lambda: randn(5, 4, 6), compute=compute)
    # The first run is one step, and lies side by side. A C++ vector frees its first element first.
    copies = [2 * 3 * 6 * 4, 2 * 1 * 6 * 4]
    assert found == [*copies, (4 + 2 * 3 + 2) * 6 * 4, *(-nbytes for nbytes in copies)]


@computed_or_dry
def test_batches_that_come_first_are_copied_whole(compute):
    def pack(x):
        sequence = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 5], batch_first=True)
        return sequence.data

    size = 5 * 2 * 6 * 4
    assert events(pack, lambda: randn(2, 5, 6), compute=compute) == [size, size, -size]
    assert events(pack, lambda: randn(5, 2, 6).transpose(0, 1), compute=compute) == [size]


# Jagged rows


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


# Windows


@computed_or_dry
@pytest.mark.parametrize("periodic", [True, False])
def test_windows_are_made_of_the_numbers_of_their_elements(periodic, compute):
    size = (10 + periodic) * 4

    def of(window):
        return events(lambda: window(10, periodic, device="cuda"), compute=compute)

    for plain in (torch.hann_window, torch.hamming_window, torch.bartlett_window):
        assert of(plain) == [size]
    assert of(torch.blackman_window) == [size] * 5 + [-size] * 4
    assert of(torch.kaiser_window) == [size, size, -size]


@computed_or_dry
def test_a_window_of_one_number_takes_nothing(compute):
    for window in (torch.blackman_window, torch.kaiser_window):
        found = events(lambda make=window: make(1, device="cuda"), compute=compute)
        assert found == [4]


# Fourier transforms


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


# Weight norm


@computed_or_dry
@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm_keeps_its_norms_in_float(dim, compute):
    def norm(v, g):
        return aten._weight_norm_interface(v, g, dim)

    rows, columns = 6, 8
    norms = (rows, 1) if dim == 0 else (1, columns)
    for dtype in (torch.float32, torch.bfloat16):
        make = [
            lambda of=dtype: randn(rows, columns, dtype=of),
            lambda of=dtype: randn(*norms, dtype=of),
        ]
        found = events(norm, *make, compute=compute)
        assert found == [rows * columns * dtype.itemsize, max(norms) * 4]
