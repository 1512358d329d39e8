"""Simulated programs ask the allocator for what real GPUs were recorded to ask."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from recorded_programs import attention_from_start, graph_trainer, lm_large, lm_small
from recorded_programs.streams import load, recorded_events, simulated_events

as_recorded = pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="recorded with Python 3.11 to 3.13: 3.14 frees a function's variables from the last to "
    "the first",
)


def peaks(stats):
    return tuple(stats[kind]["all"]["peak"] for kind in ("active_bytes", "reserved_bytes"))


def test_attention_from_the_first_allocation_on():
    """The same with arithmetic is in the test of memory histories."""
    trace = load("attention_from_start")
    events, stats = simulated_events("a100", attention_from_start.run, trace, compute=False)
    assert events == recorded_events(trace)
    assert len(events) == 62
    assert peaks(stats) == (3249144832, 3781165056)


@as_recorded
def test_forward_pass_of_the_small_model():
    trace = load("lm_small_ctx128_forward")
    events, stats = simulated_events("a100", lm_small.run, trace, compute=False)
    assert events == recorded_events(trace)
    assert peaks(stats) == (560939008, 610271232)


@as_recorded
@pytest.mark.parametrize(
    ("length", "expected"), [(128, (19498420224, 19667091456)), (512, (43810334720, 44715474944))]
)
def test_forward_passes_of_the_large_model(length, expected):
    trace = load(f"lm2.7b_ctx{length}_forward")
    program = partial(lm_large.forward, length=length)
    events, stats = simulated_events("h100", program, trace, compute=False)
    assert events == recorded_events(trace)
    assert peaks(stats) == expected


@as_recorded
def test_forward_pass_of_the_small_model_in_mixed_precision():
    trace = load("lm_small_ctx128_forward_bf16")
    recorded = recorded_events(trace)
    events, stats = simulated_events("a100", lm_small.run_in_bfloat16, trace, compute=False)
    # The autocast cache is freed in an order of C++'s hashes of addresses.
    cached = slice(1788, 1873)
    assert sorted(events[cached]) == sorted(recorded[cached])
    assert {kind for kind, _, _ in events[cached]} == {"free"}
    del events[cached], recorded[cached]
    assert events == recorded
    assert peaks(stats) == (815783936, 861929472)


@as_recorded
@pytest.mark.parametrize(
    ("length", "expected"), [(128, (24024505344, 24245174272)), (512, (39996685312, 40514879488))]
)
def test_forward_passes_of_the_large_model_in_mixed_precision(length, expected):
    trace = load(f"lm2.7b_ctx{length}_forward_bf16")
    program = partial(lm_large.forward_in_bfloat16, length=length)
    events, stats = simulated_events("h100", program, trace, compute=False)
    assert events == recorded_events(trace)
    assert peaks(stats) == expected


@as_recorded
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ctx128_train", (55079000576, 61111009280)),
        ("ctx128_train_again", (55079000576, 61111009280)),
        ("ctx256_train", (54961465856, 61025026048)),
        ("ctx512_train", (55003351552, 62830673920)),
    ],
)
def test_training_steps_of_the_large_model(name, expected):
    trace = load(f"lm2.7b_{name}")
    program = partial(lm_large.train, length=int(name[3:6]))
    events, stats = simulated_events("h100", program, trace, compute=False)
    assert events == recorded_events(trace)
    assert peaks(stats) == expected


@as_recorded
def test_training_of_a_graph_network_until_another_gpu_is_full():
    trace = load("graph_trainer_expandable")
    options = graph_trainer.OPTIONS
    events, stats = simulated_events("a100", graph_trainer.run, trace, compute=False, **options)
    assert events == recorded_events(trace)
    assert len(events) == 4352
    assert peaks(stats) == (8456489984, 8541700096)
