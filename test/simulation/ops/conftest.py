"""What the tests of ops share."""

import pytest

from pytorch_memlab.simulation.dry_run import executor


@pytest.fixture
def no_values_in_dry_runs(monkeypatch):
    """A dry run computes the values of small tensors too: no tensor is small enough for it."""
    monkeypatch.setattr(executor, "_MOST_INTEGERS", 0)
    monkeypatch.setattr(executor, "_MOST_OTHERS", 0)
