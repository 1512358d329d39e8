"""Fixtures of the courtesy's tests."""

from __future__ import annotations

import pytest

from pytorch_memlab.simulation import simulate


@pytest.fixture
def gpu(request):
    """Two simulated GPUs of 24 GiB, or of the size that is the parameter."""
    with simulate(getattr(request, "param", "24GiB"), count=2):
        yield
