"""What an object says of itself where a prompt or a cell shows it."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import Courtesy, LineProfiler, MemReporter, MemWatcher, simulate


def one():
    return torch.ones(256, device="cuda")


def two():
    return one()


@pytest.fixture
def gpu():
    with simulate("24GiB"):
        yield


def test_a_line_profiler(gpu):
    profiler = LineProfiler()
    assert repr(profiler) == "<LineProfiler of no function: 0 lines recorded, off>"
    profiler = LineProfiler(one, two)
    with profiler:
        one()
        assert repr(profiler) == "<LineProfiler of one, two: 2 lines recorded, on>"
    two()
    assert repr(profiler) == "<LineProfiler of one, two: 2 lines recorded, off>"
    assert repr(profiler.records()) == "<LineRecords of one, two>"


def test_courtesy(gpu):
    courtesy = Courtesy()
    assert repr(courtesy) == "<Courtesy: nothing is lent>"
    kept = one()
    courtesy.yield_memory()
    assert repr(courtesy) == "<Courtesy: 1.00K in 1 storage lent>"
    courtesy.restore()
    assert repr(courtesy) == "<Courtesy: nothing is lent>"
    assert kept.is_cuda


def test_a_simulation():
    simulation = simulate("h100", 2)
    assert repr(simulation) == "<simulate 2 x NVIDIA H100 80GB HBM3: off>"
    with simulation:
        assert repr(simulation) == "<simulate 2 x NVIDIA H100 80GB HBM3: on>"


def test_a_reporter_and_a_watched_loop():
    model = torch.nn.Linear(2, 2)
    reporter = MemReporter(model)
    assert repr(reporter) == "<MemReporter of Linear>"
    assert repr(MemReporter()) == "<MemReporter of all tensors>"
    assert repr(reporter.leaks(3)) == "0 iterations done: 3 are needed to tell a leak"
    del model


def test_a_watcher():
    assert repr(MemWatcher()) == "<MemWatcher: reports not>"
