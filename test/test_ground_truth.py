"""Simulated programs ask the allocator for what real GPUs were recorded to ask."""

from __future__ import annotations

from recorded_programs import attention_from_start
from recorded_programs.streams import load, recorded_events, simulated_events


def test_attention_from_the_first_allocation_on():
    trace = load("attention_from_start")
    events, stats = simulated_events("a100", attention_from_start.run, trace)
    assert events == recorded_events(trace)
    assert len(events) == 62
    assert stats["active_bytes"]["all"]["peak"] == 3249144832
