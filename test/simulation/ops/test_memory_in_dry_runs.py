"""Memory models need shapes only."""

from __future__ import annotations

import pytest
from support.op_memory import CALLS, events


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_same_is_taken_without_values(name):
    computed = events(CALLS[name])
    assert computed
    assert events(CALLS[name], compute=False) == computed
