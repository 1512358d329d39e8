"""Fixtures of the tests of ops."""

import pytest

from pytorch_memlab.simulation.machine import tensor_values


@pytest.fixture
def no_values_in_dry_runs(monkeypatch):
    """A dry run computes the values of small tensors too: no tensor is small enough for it."""
    monkeypatch.setattr(tensor_values, "_MOST_INTEGERS", 0)
    monkeypatch.setattr(tensor_values, "_MOST_OTHERS", 0)
