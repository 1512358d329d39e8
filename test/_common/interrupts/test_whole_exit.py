"""An interrupt at any place of a ``with`` statement: its end is run all the same."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch
from support.allocator_invariants import check_machine
from support.interrupted_work import Interrupted, each_place, interrupt_at, interrupts_raise

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.interrupts.whole_exit import WholeExit
from pytorch_memlab._common.torch.storages import after_death, raise_kept
from pytorch_memlab.cli import ending_signals
from pytorch_memlab.devices import get_device, simulated_machine
from pytorch_memlab.scopes import PeakScope, peak_tracker

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    with interrupts_raise():
        yield


def profiled() -> None:
    held = torch.empty(1000, device="cuda")
    del held


def scope() -> None:
    with PeakScope("cuda:0"):
        pass


def profiler() -> None:
    with LineProfiler(profiled):
        pass


def allocation() -> None:
    held = torch.empty(1000, device="cuda")
    held.resize_(3000)
    del held


def gradient() -> None:
    tensor = torch.empty(10, device="cuda", requires_grad=True)
    tensor.grad = None
    assert tensor.grad is None
    del tensor.grad


@pytest.mark.parametrize(
    ("work", "step"),
    [(scope, 1), (profiler, 3), (allocation, 1), (gradient, 1)],
    ids=["scope", "profiler", "alloc", "gradient"],
)
def test_no_place_of_a_short_section_leaves_anything(work: Callable[[], None], step: int) -> None:
    with simulate("24GiB") as machine:
        names = dict(vars(torch.nn.Module))
        kept = torch.empty(1000, device="cuda")
        work()
        for place in each_place(work, step, outside=(__file__,)):
            for _ in range(2):
                with suppress(Interrupted):  # one in a finalizer is raised at the next question
                    torch.empty(1, device="cuda")
            assert sys.gettrace() is None, place
            assert gc.isenabled(), place
            assert peak_tracker(get_device(0)).segments == [], place
            assert torch.cuda.memory_allocated() == 4096, place
            assert dict(vars(torch.nn.Module)) == names, place
        check_machine(machine)
        assert place > 50
        del kept


def test_an_interrupt_at_the_beginning_of_each_end_of_a_simulation() -> None:
    def work() -> None:
        with simulate("24GiB"):
            pass

    work()
    total, _ = interrupt_at(10**9, work, outside=(__file__,))
    for from_end in range(1, 60):
        interrupt_at(total - from_end, work, outside=(__file__,))
        assert simulated_machine() is None


class Manager:
    def __init__(self) -> None:
        self.ended: list[BaseException | None] = []
        self.counted = 0

    def __enter__(self) -> Manager:
        return self

    def _end(self, error: BaseException | None, mark: list[None]) -> None:
        if not mark:
            self.counted += 1
            mark.append(None)
        self.ended.append(error)

    __exit__: Any = WholeExit(_end)


def test_the_end_has_the_error_and_lets_it_pass() -> None:
    manager, error = Manager(), ValueError("one")
    with pytest.raises(ValueError, match="one"), manager:
        raise error
    with manager:
        pass
    with ExitStack() as exits:
        exits.enter_context(manager)
    exits = ExitStack()
    exits.enter_context(manager)
    with pytest.raises(ValueError, match="one"), exits:
        raise error
    assert manager.ended == [error, None, None, error]
    assert manager.counted == 4


class Fault(Exception):
    pass


def test_nothing_keeps_the_error() -> None:
    alive = []

    def fail() -> None:
        error = Fault()
        alive.append(weakref.ref(error))
        with PeakScope("cuda:0"):
            raise error

    with simulate("24GiB"), suppress(Fault):
        fail()
    gc.collect()
    assert alive[0]() is None


def test_in_the_handler_of_another_error_that_error_does_not_end_it() -> None:
    manager = Manager()
    try:
        raise KeyError
    except KeyError:
        with manager:
            pass
        manager.__exit__()
    assert manager.ended == [None, None]


def test_every_place_of_an_exit_comes_to_its_end() -> None:
    for place in range(1, 20):
        manager = Manager()

        def work(manager: Manager = manager) -> None:
            with manager:
                pass

        _, raised = interrupt_at(place, work, outside=("work", "__enter__"))
        # Before the block, the exit is made: an interrupt there leaves nothing to end.
        assert manager.ended or raised
        if manager.ended:
            assert manager.counted == 1


class Mortal:
    pass


def test_work_after_a_death_is_done_though_an_interrupt_begins_it() -> None:
    for place in range(1, 10):
        done: list[int] = []
        mortal = [Mortal()]
        after_death(mortal[0], lambda done=done: done.append(1))
        interrupt_at(place, mortal.clear, outside=(__file__,))
        assert done, place
        with suppress(Interrupted):
            raise_kept()


def test_a_recording_that_outlives_the_modules_ends_without_a_word() -> None:
    """Python empties the later modules before the one that holds the recording."""
    code = """\
import sys, types
import pytorch_memlab._common.torch.storages
sys.modules["between"] = between = types.ModuleType("between")
from pytorch_memlab.history import recorder
between.recording = recorder.Recording()
sys.kept = [pytorch_memlab._common.torch.storages, between, recorder]
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_place_of_the_start_of_ending_signals_leaves_anything() -> None:
    begun = [ExitStack()]

    def state() -> tuple[object, ...]:
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        handlers = [signal.getsignal(number) for number in ending_signals.NUMBERS]
        return handlers, wakeup, list(ending_signals._in_force), vars(signal)["signal"]

    def start() -> None:
        begun.append(ExitStack())
        ending_signals.EndingSignals({}).start(begun[-1], lambda _error: None)

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before, files = state(), open_files()
    for place in each_place(start, outside=(__file__,)):
        begun[-1].close()
        assert state() == before, place
    assert place > 20
    until = time.monotonic() + 30
    while open_files() > files and time.monotonic() < until:
        time.sleep(0.01)  # the threads that wait for signals close their ends
    assert open_files() <= files
