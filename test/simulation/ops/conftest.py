"""Fixtures of the tests of ops."""

from __future__ import annotations

from typing import Any

import pytest

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine import tensor_values


@pytest.fixture
def no_values_in_dry_runs(monkeypatch):
    """A dry run computes the values of small tensors too: no tensor is small enough for it."""
    monkeypatch.setattr(tensor_values, "_MOST_INTEGERS", 0)
    monkeypatch.setattr(tensor_values, "_MOST_OTHERS", 0)


@pytest.fixture
def a100() -> Any:
    with simulate("a100") as machine:
        yield machine
