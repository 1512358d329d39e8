"""Calls hidden from tracers: an interrupt on the way in leaves no thread without its tracer."""

from __future__ import annotations

import sys

import pytest

from pytorch_memlab._common import hidden_calls
from pytorch_memlab._common.hidden_calls import CAN_HIDE, hidden

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
