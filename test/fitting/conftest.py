"""Fixtures of the tests of ``fit``."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_rank(monkeypatch):
    """No rank that a launcher of these tests has set."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
