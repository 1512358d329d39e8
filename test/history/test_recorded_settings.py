"""The settings of the allocator that made a snapshot, whichever PyTorch version wrote it."""

from __future__ import annotations

import pytest

from pytorch_memlab.history.peak import settings_of
from pytorch_memlab.simulation.allocator.settings import NO_LIMIT, AllocatorSettings

MIB = 2**20
DIVISIONS = {str(2**power): 4 for power in range(16)}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, AllocatorSettings()),
        ({"PYTORCH_CUDA_ALLOC_CONF": None}, AllocatorSettings()),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync,max_split_size_mb:32"},
            AllocatorSettings(max_split_size=32 * MIB),
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:" + "9" * 5000},
            AllocatorSettings(),
        ),
        (
            # A program changed what the environment variable said.
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32", "max_split_size": -1},
            AllocatorSettings(max_split_size=NO_LIMIT),
        ),
        (
            {
                "max_split_size": 64 * MIB,
                "garbage_collection_threshold": 0.5,
                "expandable_segments": True,
                "roundup_power2_divisions": DIVISIONS,
            },
            AllocatorSettings(
                max_split_size=64 * MIB,
                garbage_collection_threshold=0.5,
                expandable_segments=True,
                roundup_power2_divisions=(4,) * 16,
            ),
        ),
        (
            {"max_split_size": "64", "expandable_segments": 1, "roundup_power2_divisions": [1]},
            AllocatorSettings(),
        ),
        ({"roundup_power2_divisions": {**DIVISIONS, "1": "4"}}, AllocatorSettings()),
    ],
)
def test_what_is_known_counts_and_the_rest_is_left_out(found, expected):
    assert settings_of(found) == expected
