"""The tests that are measured. Every session loads this, so nothing heavy is imported."""

from __future__ import annotations

from typing import Final

import pytest

MARKS: Final = {
    "gpu_memory_limit": 'gpu_memory_limit(size, gpu=None): fail if more than size, such as "2 GiB",'
    " is in use on a GPU while the test runs. gpu is simulated where there is none",
    "gpu_leaks": "gpu_leaks(size, gpu=None): fail if more than size stays in use when the test and"
    " its fixtures are over",
}
FIXTURE: Final = "gpu_memory"

REPORT_FIELD: Final = "memlab"
"""The attribute of a test's report that has its memory; xdist sends it along."""


def asks_for_memory(item: pytest.Item) -> bool:
    """True if a test has a mark of the plugin, or uses its fixture."""
    if FIXTURE in getattr(item, "fixturenames", ()):
        return True
    return any(mark.name in MARKS for mark in item.iter_markers())


def has_own_mark(item: pytest.Item) -> bool:
    """True if a test itself has a mark of the plugin, not only its class or module."""
    return any(mark.name in MARKS for mark in item.own_markers)
