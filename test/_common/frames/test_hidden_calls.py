"""Calls hidden from tracers: an interrupt on the way in leaves no thread without its tracer."""

from __future__ import annotations

import sys

import pytest
import torch

from pytorch_memlab import LineProfiler
from pytorch_memlab._common.frames import hidden_calls
from pytorch_memlab._common.frames.hidden_calls import CAN_HIDE, hidden
from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.skipif(not CAN_HIDE, reason="Python 3.11 and later can hide calls")


def traced_calls(work):
    """The names of functions whose calls a trace function sees."""
    seen = []
    before = sys.gettrace()
    sys.settrace(lambda frame, event, _argument: seen.append(frame.f_code.co_name))
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


def inner():
    """Something to call."""


def test_an_interrupt_on_the_way_in_leaves_tracing_on(monkeypatch):
    enter = hidden_calls._enter

    def interrupted(state):
        enter(state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(hidden_calls, "_enter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hidden(inner)
    assert traced_calls(inner) == ["inner"]
    assert "inner" not in traced_calls(lambda: hidden(inner))
    assert traced_calls(inner) == ["inner"]


def calls_of_an_op(hide):
    """The names of functions that a trace function sees of a sum on a simulated GPU."""
    seen = []

    def trace(frame, event, _argument):
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    with simulate("1GiB") as machine:
        machine.allocations.sweep_at_once()  # as a recording does
        x = torch.ones(3, device="cuda")
        y = x + x  # which imports and caches
        if hide:
            hidden_calls.hide_from(trace)
        sys.settrace(trace)
        try:
            y = x + x
            del y  # its memory is given back
            inner()
        finally:
            sys.settrace(before)
            hidden_calls.show_to(trace)
    return seen


def test_a_tracer_that_does_not_care_sees_no_call_of_an_op_nor_of_a_free():
    shown, unseen = calls_of_an_op(hide=False), calls_of_an_op(hide=True)
    assert {"_run", "put", "malloc", "sweep", "free", "inner"} <= set(shown)
    assert not {"_run", "put", "malloc", "sweep", "free"} & set(unseen)
    assert "inner" in unseen
    assert len(unseen) < len(shown) / 3


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring asks once per function")
def test_the_line_profiler_does_not_look_at_calls_of_ops():
    seen = []

    def profiled():
        seen.append(hidden_calls.is_incurious())

    with simulate("1GiB"), LineProfiler(profiled):
        profiled()
    assert seen == [True]
    assert not hidden_calls.is_incurious()
    assert not hidden_calls.incurious
