"""Temporaries of quantization."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


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
