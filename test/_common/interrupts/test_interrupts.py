"""A signal whose handler raises, wherever Python may run it.

Python runs handlers where a function begins and where a call of C has returned. A profile function
is called at just these places: it makes the signal arrive at one after the other, each in a run of
its own.
"""

from __future__ import annotations

import _thread
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import pytorch_memlab
from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.frames import hidden_calls
from pytorch_memlab._common.interrupts.uninterrupted import uninterrupted
from pytorch_memlab._common.torch.storages import StorageTable
from pytorch_memlab.devices import get_device, simulated_machine
from pytorch_memlab.line_profiler.reloaded_functions import _RELOADER
from pytorch_memlab.scopes import peak_tracker

PACKAGE = str(Path(pytorch_memlab.__file__).parent)

needs_alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="signals of POSIX")
pytestmark = needs_alarm


class Interrupted(BaseException):
    """The error that the signals' handlers raise."""


@pytest.fixture(params=["SIGINT", "SIGALRM"], autouse=True)
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    number = getattr(signal, request.param)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(number, interrupt)
    yield number
    assert signal.getsignal(number) is interrupt, "the program's handler is not in force any more"
    signal.signal(number, before)


@pytest.fixture(autouse=True)
def _all_calls_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals arrive also in the calls that a tracer need not see."""
    monkeypatch.setattr(hidden_calls, "CAN_HIDE", False)


@pytest.fixture(autouse=True)
def _nothing_was_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler begins with all functions of all tests after another test loaded autoreload."""
    monkeypatch.delitem(sys.modules, _RELOADER, raising=False)


def interrupt_at(place: int, number: int, work: Callable[[], object]) -> bool:
    """Let the signal arrive at a place in this package; False if there are fewer."""
    passed = 0

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal passed
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            passed += 1
            if passed == place:
                sys.setprofile(None)
                signal.raise_signal(number)

    sys.setprofile(profile)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
    return passed >= place


def places(step: int) -> Iterator[int]:
    """All of the first, and then one of so many."""
    yield from range(1, 100)
    yield from range(100, 10**9, step)


def block() -> torch.Tensor:
    return torch.empty(1024, device="cuda")


def modes() -> tuple[Any, ...]:
    return _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()


@pytest.mark.parametrize("begins", [True, False], ids=["enter", "exit"])
def test_a_simulation_is_on_or_off_and_never_half(begins: bool, number: int) -> None:
    owners = (torch, torch._C, torch.Tensor, torch.cuda)
    names = [dict(vars(owner)) for owner in owners]
    for place in places(1999):
        simulation = simulate("24GiB")
        if begins:
            was_there = interrupt_at(place, number, simulation.__enter__)
            assert (simulated_machine() is None) == was_there
        else:
            simulation.__enter__()
            was_there = interrupt_at(place, number, simulation.__exit__)
        simulation.__exit__()
        assert simulated_machine() is None
        assert modes() == ([], [])
        assert [dict(vars(owner)) for owner in owners] == names
        if not was_there:
            assert place > 100
            return


def test_a_profiler_that_was_interrupted_at_its_beginning_is_off(number: int) -> None:
    with simulate("24GiB"):
        kept = block()
        for place in places(41):
            profiler = LineProfiler(block)
            was_there = interrupt_at(place, number, profiler.__enter__)
            assert profiler.enabled != was_there
            profiler.__exit__()
            assert sys.gettrace() is None
            assert peak_tracker(get_device(0)).segments == []
            if not was_there:
                break
        assert place > 50
        del kept


def test_a_profiler_that_was_interrupted_at_its_end_can_be_ended_again(number: int) -> None:
    def ended_inside(place: int, profiler: LineProfiler) -> bool:
        return interrupt_at(place, number, profiler.disable)

    with simulate("24GiB"):
        kept = block()
        for place in places(41):
            profiler = LineProfiler(ended_inside)
            profiler.enable()
            was_there = ended_inside(place, profiler)
            profiler.disable()
            assert not profiler.enabled
            assert sys.gettrace() is None
            assert peak_tracker(get_device(0)).segments == []
            if not was_there:
                break
        assert place > 50
        del kept


def test_a_line_that_was_interrupted_leaves_no_window(number: int) -> None:
    def work() -> None:
        kept = block()
        del kept

    with simulate("24GiB"):
        kept = block()
        for place in places(41):
            profiler = LineProfiler(work)
            profiler.enable()
            was_there = interrupt_at(place, number, work)
            profiler.disable()
            assert sys.gettrace() is None
            assert peak_tracker(get_device(0)).segments == []
            if not was_there:
                break
        assert place > 100
        del kept


def test_a_death_loses_no_memory(number: int, monkeypatch: Any) -> None:
    """Python swallows what is raised where the callback of a weak reference begins."""
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    with simulate("24GiB") as machine:
        machine.allocations.sweep_at_once()
        for place in places(41):
            tensors = [block()]
            was_there = interrupt_at(place, number, tensors.clear)
            for _ in range(2):
                with suppress(Interrupted):  # what could be kept is raised again
                    block()
            gpu = machine.gpus[0]
            assert gpu.locked(gpu.allocator.memory_stats)["allocated_bytes"]["all"]["current"] == 0
            if not was_there:
                break
        assert place > 10
    assert len(swallowed) <= 1, "what a tracer itself raises where a function begins, alone"


def test_what_died_before_an_interrupted_op_loses_no_memory(number: int) -> None:
    with simulate("24GiB") as machine:
        gpu = machine.gpus[0]
        for place in places(211):
            kept, dead = [block()], [block()]

            def free_and_take(kept: Any = kept, dead: Any = dead) -> None:
                dead.clear()
                kept.append(block())

            was_there = interrupt_at(place, number, free_and_take)
            kept.clear()
            assert gpu.locked(gpu.allocator.memory_stats)["allocated_bytes"]["all"]["current"] == 0
            if not was_there:
                break
        assert place > 40


class _Arriving(weakref.ref[Any]):
    """A weak reference whose callback makes a signal arrive, all of it in C."""

    arrive = _thread.interrupt_main


def die_interrupted(tensors: list[torch.Tensor], number: int) -> None:
    """Let a tensor die; a signal arrives right before what else waits for its death."""
    first = _Arriving(tensors[0].untyped_storage(), methodcaller("arrive", number))
    tensors.clear()
    del first


def test_an_interrupt_at_the_beginning_of_a_death_is_raised_at_the_next_question(
    number: int, monkeypatch: Any
) -> None:
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    with simulate("24GiB") as machine:
        machine.allocations.sweep_at_once()
        kept = block()
        die_interrupted([block()], number)
        with pytest.raises(Interrupted):
            kept + 1
        assert torch.cuda.memory_allocated() == kept.nbytes
        kept + 1
    assert swallowed == []


def test_an_interrupt_in_the_last_death_is_raised_when_the_simulation_ends(number: int) -> None:
    with pytest.raises(Interrupted), simulate("24GiB"):
        die_interrupted([block()], number)
    assert simulated_machine() is None


def test_a_table_that_is_cleared_raises_nothing() -> None:
    table: StorageTable[int] = StorageTable(lambda _: None)
    tensor = torch.empty(16)
    table.add(tensor.untyped_storage(), 1)
    table.clear()
    assert table.known == {}
    del tensor
    assert table.known == {}


def test_an_interrupt_in_the_middle_of_a_death_is_raised_at_the_next_question() -> None:
    table: StorageTable[int] = StorageTable(lambda number: signal.raise_signal(number))
    tensor = torch.empty(16)
    table.add(tensor.untyped_storage(), signal.SIGALRM)
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        del tensor
        with pytest.raises(Interrupted):
            table.known.clear()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert table.known == {}


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def test_an_allocation_is_counted_or_was_not_made(number: int) -> None:
    with simulate("24GiB"):
        for place in places(41):
            kept: list[torch.Tensor] = []
            was_there = interrupt_at(place, number, lambda kept=kept: kept.append(block()))
            kept.clear()
            assert torch.cuda.memory_allocated() == 0
            blocks = [one for part in torch.cuda.memory_snapshot() for one in part["blocks"]]
            assert [one["state"] for one in blocks if one["state"] != "inactive"] == []
            if not was_there:
                break
        assert place > 50


def test_every_signal_that_waited_arrives_though_the_handler_of_one_raised() -> None:
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        raise Interrupted(number)

    numbers = [signal.SIGALRM, signal.SIGTERM, signal.SIGINT]
    before = [signal.signal(number, note) for number in numbers]
    try:
        with pytest.raises(Interrupted) as raised, uninterrupted(), uninterrupted():
            _arrive(signal.SIGINT, signal.SIGALRM, signal.SIGTERM, seen=seen)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert seen == [signal.SIGALRM, signal.SIGTERM, signal.SIGINT]
    assert raised.value.args == (signal.SIGINT,)


def _arrive(*numbers: int, seen: list[int]) -> None:
    for number in numbers:
        signal.raise_signal(number)
    assert seen == []


class _Last:
    """Something that dies right before what stands before it in a list."""


def clear_interrupted(held: list[Any], number: int) -> None:
    """Clear a list; a signal arrives right before its first element dies, all of it in C."""
    last = _Last()
    first = _Arriving(last, methodcaller("arrive", number))
    held.append(last)
    del last
    held.clear()
    del first


@pytest.mark.parametrize("what", ["window", "event"])
def test_an_interrupt_where_a_window_or_an_event_dies_is_not_swallowed(
    what: str, number: int, monkeypatch: Any
) -> None:
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    with simulate("24GiB"):
        block()
        held: list[Any] = []
        if what == "window":
            held.append(peak_tracker(get_device(0)).open()[0])
            held[0].close()
        else:
            held.append(torch.cuda.Event())
            held[0].record()
        with pytest.raises(Interrupted):
            clear_interrupted(held, number)
    assert swallowed == []


def test_a_window_that_is_dropped_ends(number: int) -> None:
    with simulate("24GiB"):
        block()
        tracker = peak_tracker(get_device(0))
        window, _ = tracker.open()
        assert tracker.segments != []
        del window
        assert tracker.segments == []
