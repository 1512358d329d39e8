"""A program that comes to Python's limit of recursion loses no memory, and goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from support.allocator_invariants import check_machine
from torch.nn import functional

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.scopes import PeakScope, peak_tracker

MB = 2**20


class Inputs:
    """The tensors that the operations read, made before with all the room that there is."""

    def __init__(self) -> None:
        self.vector = torch.randn(1000, device="cuda")
        self.matrix = torch.randn(64, 64, device="cuda")
        self.weight = torch.randn(64, 64, device="cuda", requires_grad=True)
        self.image = torch.randn(1, 3, 16, 16, device="cuda")
        self.kernel = torch.randn(4, 3, 3, 3, device="cuda")
        self.heads = torch.randn(1, 2, 8, 16, device="cuda")
        self.host = torch.randn(1000)
        self.stream = torch.cuda.Stream()
        self.bytes = torch.empty(0, dtype=torch.uint8, device="cuda")
        self.kept = torch.empty(3 * MB, dtype=torch.uint8, device="cuda")


def free(_: Inputs) -> None:
    held = torch.empty(3000, device="cuda")
    del held


def resize(inputs: Inputs) -> None:
    inputs.bytes.resize_(inputs.bytes.numel() + 4096)


def record_stream(inputs: Inputs) -> None:
    held = torch.empty(3000, device="cuda")
    with torch.cuda.stream(inputs.stream):
        torch.cuda._sleep(1000)
        held.record_stream(inputs.stream)
        torch.empty(5000, device="cuda")
    del held
    inputs.stream.synchronize()


def backward(inputs: Inputs) -> None:
    inputs.weight.grad = None
    (inputs.matrix @ inputs.weight).relu().sum().backward()


def autocast(inputs: Inputs) -> Any:
    with torch.autocast("cuda", dtype=torch.float16):
        return inputs.matrix @ inputs.weight


def out_of_memory(_: Inputs) -> None:
    with suppress(torch.OutOfMemoryError):
        torch.empty(2**40, dtype=torch.uint8, device="cuda")


def retry(_: Inputs) -> None:
    """The cache has to go back to the GPU before the request can be served."""
    held = torch.empty(60 * MB, dtype=torch.uint8, device="cuda")
    del held
    torch.empty(70 * MB, dtype=torch.uint8, device="cuda")


def workspaces(inputs: Inputs) -> None:
    torch.mm(inputs.matrix, inputs.matrix)
    torch._C._cuda_clearCublasWorkspaces()


def peaks(_: Inputs) -> None:
    with PeakScope("cuda:0"):
        torch.empty(3000, device="cuda")


OPERATIONS: dict[str, Callable[[Inputs], Any]] = {
    "allocation": lambda _: torch.empty(3000, device="cuda"),
    "large allocation": lambda _: torch.empty(30 * MB, dtype=torch.uint8, device="cuda"),
    "free": free,
    "out of place": lambda inputs: inputs.vector * 2 + inputs.vector,
    "in place": lambda inputs: inputs.vector.add_(1),
    "resize": resize,
    "views": lambda inputs: inputs.matrix[1:].t().reshape(-1).view(-1, 9),
    "mm": lambda inputs: inputs.matrix @ inputs.matrix,
    "conv": lambda inputs: functional.conv2d(inputs.image, inputs.kernel),
    "attention": lambda inputs: functional.scaled_dot_product_attention(*[inputs.heads] * 3),
    "reduction": lambda inputs: (inputs.matrix.sum(), inputs.matrix.softmax(0)),
    "sort": lambda inputs: inputs.vector.sort(),
    "to the GPU": lambda inputs: inputs.host.cuda(),
    "to the CPU": lambda inputs: inputs.vector.cpu(),
    "pinned": lambda inputs: inputs.host.pin_memory().cuda(non_blocking=True),
    "record_stream": record_stream,
    "empty_cache": lambda _: torch.cuda.empty_cache(),
    "memory_stats": lambda _: torch.cuda.memory_stats(),
    "snapshot": lambda _: torch.cuda.memory_snapshot(),
    "reset peaks": lambda _: torch.cuda.reset_peak_memory_stats(),
    "out of memory": out_of_memory,
    "retry": retry,
    "backward": backward,
    "autocast": autocast,
    "random": lambda _: torch.randn(100, device="cuda"),
    "nonzero": lambda inputs: inputs.vector.nonzero(),
    "workspaces": workspaces,
    "peak scope": peaks,
}


def depth() -> int:
    """Calls of Python that are nested now."""
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        count, frame = count + 1, frame.f_back  # type: ignore[assignment]
    return count


def limits() -> range:
    """Limits from those that allow nothing more to those that allow every operation here."""
    lowest = depth()
    while not _is_allowed(lowest):
        lowest += 1
    return range(lowest, lowest + 400)


def _is_allowed(limit: int) -> bool:
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit)
    except RecursionError:
        return False
    sys.setrecursionlimit(before)
    return True


def works_within(limit: int, work: Callable[[], object]) -> bool:
    """Do something with a limit of recursion; False if it comes to the limit."""
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit)
        work()
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(before)
    return True


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The errors that Python swallowed, such as in a finalizer."""
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_type))
    return errors


@pytest.mark.parametrize("compute", [True, False], ids=["computed", "dry"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_at_every_limit_an_operation_is_done_or_leaves_nothing(
    operation: str, compute: bool, swallowed: list[Any]
) -> None:
    work = OPERATIONS[operation]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    failures = 0
    with simulate("100MiB", compute=compute) as machine:
        inputs: Any = Inputs()
        work(inputs)
        passes = 0
        for limit in limits():
            passed = works_within(limit, partial(work, inputs))
            check_machine(machine)
            work(inputs)
            check_machine(machine)
            if passed:
                passes += 1
                if passes == 3:
                    break
            else:
                failures += 1
        assert passes == 3
        assert failures
        inputs = None
        torch._C._cuda_clearCublasWorkspaces()
        check_machine(machine)
        assert torch.cuda.memory_allocated() == 0
        assert peak_tracker(get_device(0)).segments == []
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers


def die(tensor: torch.Tensor) -> None:
    del tensor


def test_a_tensor_that_dies_where_python_can_call_nothing_is_freed(swallowed: list[Any]) -> None:
    with simulate("100MiB") as machine:
        for limit in limits():
            held = [torch.empty(1000, device="cuda")]
            works_within(limit, held.clear)
            held.clear()
            assert torch.cuda.memory_allocated() == 0
            check_machine(machine)
            held = [torch.empty(1000, device="cuda")]
            works_within(limit, lambda held=held: die(held.pop()))
            held.clear()
            fresh = [torch.empty(1000, device="cuda") for _ in range(3)]
            check_machine(machine)
            assert torch.cuda.memory_allocated() == 3 * 4096
            del fresh


def recurse() -> None:
    held = torch.empty(1024, dtype=torch.uint8, device="cuda")
    recurse()
    del held


@pytest.mark.parametrize("compute", [True, False], ids=["computed", "dry"])
def test_a_program_that_recurses_without_end_goes_on(compute: bool) -> None:
    begin = depth()
    for limit in range(begin + 100, begin + 200):
        with simulate("1GiB", compute=compute) as machine:
            assert not works_within(limit, recurse)
            check_machine(machine)
            assert torch.cuda.memory_allocated() == 0
            peak = torch.cuda.max_memory_allocated()
            held = torch.empty(3 * MB, dtype=torch.uint8, device="cuda")
            assert torch.cuda.max_memory_allocated() == max(peak, 3 * MB)
            del held


def test_a_profiled_function_that_recurses_without_end_is_measured(swallowed: list[Any]) -> None:
    begin = depth()
    with simulate("1GiB") as machine:
        for limit in range(begin + 200, begin + 260):
            with LineProfiler(recurse) as profiler:
                assert not works_within(limit, recurse)
            check_machine(machine)
            assert sys.gettrace() is None
            assert peak_tracker(get_device(0)).segments == []
            assert torch.cuda.memory_allocated() == 0
            assert profiler.records().to_dataframe().size
