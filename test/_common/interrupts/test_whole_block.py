"""Blocks that are begun and ended whole, whatever interrupts them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.interrupted_work import Interrupted, each_place, interrupts_raise

from pytorch_memlab._common.interrupts.whole_block import WholeStack, whole_block
from pytorch_memlab._common.patching.patches import Patches

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    with interrupts_raise():
        yield


class State:
    """Two numbers that a block changes, one after the other."""

    def __init__(self) -> None:
        self.first = self.second = 0
        self.begun = self.ended = 0

    @whole_block
    def changed(self) -> Iterator[str]:
        self._change(1)
        self.begun += 1
        try:
            yield "value"
        finally:
            self._change(-1)
            self.ended += 1

    def _change(self, by: int) -> None:
        self.first += by
        self.second += by


def test_at_each_place_a_block_is_whole_or_not_there() -> None:
    state = State()
    bodies = 0

    def work() -> None:
        nonlocal bodies
        with state.changed():
            assert (state.first, state.second) == (1, 1)
            bodies += 1

    work()
    for place in each_place(work, outside=(__file__,)):
        assert (state.first, state.second) == (0, 0), place
        assert state.begun == state.ended, place
    assert place > 20
    assert 0 < bodies <= state.begun


def test_a_stack_leaves_all_that_it_entered() -> None:
    states = State(), State()

    def work() -> None:
        with WholeStack() as stack:
            for state in states:
                stack.enter_context(state.changed())

    for place in each_place(work, outside=(__file__,)):
        assert [(one.first, one.second) for one in states] == [(0, 0)] * 2, place
    assert place > 40


def test_patches_are_all_taken_back() -> None:
    class Owner:
        one, other = 1, 2

    def work() -> None:
        with Patches() as patches:
            patches.set(Owner, "one", 3)
            patches.set(Owner, "other", 4)

    for place in each_place(work, outside=(__file__,)):
        assert (Owner.one, Owner.other) == (1, 2), place
    assert place > 20


def test_a_block_gives_its_value_and_decorates_functions() -> None:
    state = State()
    with state.changed() as value:
        assert value == "value"
    decorated = state.changed()(lambda: state.first)
    assert [decorated(), decorated()] == [1, 1]
    assert (state.first, state.begun, state.ended) == (0, 3, 3)


def test_errors_pass_and_those_of_the_end_take_their_place() -> None:
    @whole_block
    def handling() -> Iterator[None]:
        with suppress(ValueError):
            yield

    @whole_block
    def failing() -> Iterator[None]:
        try:
            yield
        finally:
            raise KeyError("the end")

    with pytest.raises(ValueError, match="mine"), handling():
        raise ValueError("mine")
    with pytest.raises(KeyError, match="the end"), failing():
        raise ValueError("mine")
    with pytest.raises(Interrupted), handling():
        signal.raise_signal(signal.SIGUSR1)
    state, stack = State(), WholeStack()
    stack.enter_context(state.changed())
    with pytest.raises(ValueError, match="mine"), stack:
        raise ValueError("mine")
    assert (state.first, state.ended) == (0, 1)


def test_it_is_a_context_of_contextlib_too() -> None:
    state = State()
    with ExitStack() as stack:
        stack.enter_context(state.changed())
        assert state.first == 1
    assert state.first == 0
