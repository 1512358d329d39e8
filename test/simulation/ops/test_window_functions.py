"""Temporaries of window functions."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


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
