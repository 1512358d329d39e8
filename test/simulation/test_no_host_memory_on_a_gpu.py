"""Python has no memory at one place while a simulated GPU works: nothing is lost or half done."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.allocator_invariants import check_machine
from support.no_host_memory import fails_at, in_fork

from pytorch_memlab import simulate
from pytorch_memlab.simulation.inspect import Machine
from pytorch_memlab.simulation.machine.simulated_gpu import Allocation

MB = 2**20
PLACES_OF_A_DEATH = 150
"""More than there are: no error leaves a finalizer, which would tell that there are more."""


class Program:
    """A simulated GPU, and what the program holds of it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.gpu = machine.gpus[0]
        self.storage: torch.UntypedStorage | None = torch.UntypedStorage(5000)
        self.fresh = torch.UntypedStorage(7000)
        self.result: Any = None
        machine.put(self.storage, self.gpu)
        machine.put(torch.UntypedStorage(3 * MB), self.gpu)

    def allocation(self) -> Allocation:
        assert self.storage is not None
        return self.machine.allocations.known[self.storage._cdata]


def allocate_and_release(program: Program) -> None:
    program.gpu.release(program.gpu.allocate(3000, 0, is_estimate=True))


def put(program: Program) -> None:
    if program.fresh._cdata not in program.machine.allocations.known:
        program.machine.put(program.fresh, program.gpu)


def die(program: Program) -> None:
    program.storage = None


def resize(program: Program) -> None:
    assert program.storage is not None
    program.machine.resized(program.storage)


def clear_workspaces(program: Program) -> None:
    program.machine.workspaces.need(program.gpu, 0)
    program.machine.workspaces.clear()


OPERATIONS: dict[str, Callable[[Program], object]] = {
    "memory of a kernel": allocate_and_release,
    "data": put,
    "death": die,
    "workspaces": clear_workspaces,
    "counters": lambda it: it.gpu.locked(it.gpu.allocator.memory_stats),
    "cache": lambda it: it.gpu.locked(it.gpu.allocator.empty_cache),
    "room": lambda it: it.gpu.room(),
}


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_done_or_leaves_nothing(operation: str, count: int) -> None:
    in_fork(partial(check_at_each_place, OPERATIONS[operation], count))


def check_at_each_place(work: Callable[[Program], object], count: int) -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    limit = sys.getrecursionlimit()
    place, failed = 0, True
    while failed or (work is die and place < PLACES_OF_A_DEATH):
        with simulate("100MiB") as machine:
            machine.gpus[0].log.capture = lambda: None  # PyTorch's looks for no error of Python
            program = Program(machine)
            failed = fails_at(place, count, partial(work, program))
            assert gc.isenabled()
            assert sys.getrecursionlimit() == limit
            check_machine(machine)
            held = torch.empty(3000, dtype=torch.uint8, device="cuda")
            check_machine(machine)
            work(program)
            check_machine(machine)
            del held, program
            check_machine(machine)
            assert torch.cuda.memory_allocated() == 0
        assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
        place += 1
    assert place > 5
