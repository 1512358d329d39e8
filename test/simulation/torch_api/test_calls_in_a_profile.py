"""The calls of Python functions in a profile: the program's, and not what a simulated op calls."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from pytorch_memlab._common.frames.hidden_calls import CAN_HIDE
from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.skipif(not CAN_HIDE, reason="Python 3.11 and later can hide calls")

BELOW_AN_OP = ("simulation/allocator", "simulation/ops", "simulation/dry_run")


@pytest.fixture(autouse=True)
def gpu():
    with simulate("24GiB") as machine:
        yield machine


@torch.library.custom_op("memlab_calls_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return kernel_of_the_program(x)


def kernel_of_the_program(x: torch.Tensor) -> torch.Tensor:
    return x + x


def program_calls() -> None:
    """Something to find."""


def calls(taken: Any) -> list[str]:
    """The names of the functions that a profile has."""
    found = []
    waiting = list(taken.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == torch._C._profiler._EventType.PyCall:
            found.append(event.name)
    return found


def profiled(work: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as taken:
        work()
    return calls(taken)


def named(found: list[str], function: str) -> int:
    return Counter(name.rpartition(": ")[2] for name in found)[function]


def test_a_profile_has_the_program_and_not_what_an_op_calls():
    model = torch.nn.Linear(4, 4, device="cuda")

    def work():
        for _ in range(3):
            program_calls()
            model(torch.ones(2, 4, device="cuda")).sum().backward()

    found = profiled(work)
    assert named(found, "program_calls") == 3
    assert sum(name.endswith(": forward") for name in found) == 3
    below = [name for name in found if any(part in name for part in BELOW_AN_OP)]
    assert below == []


def test_the_kernel_of_an_op_of_the_program_is_in_its_profile():
    x = torch.ones(4, device="cuda")
    assert named(profiled(lambda: twice(x)), "kernel_of_the_program") == 1


def test_calls_are_recorded_after_an_op_that_fails():
    one, other = torch.ones(3, device="cuda"), torch.ones(4, device="cuda")

    def work():
        with pytest.raises(RuntimeError):
            torch.mm(one, other)
        program_calls()

    assert named(profiled(work), "program_calls") == 1


def test_a_profile_that_outlives_the_simulation_hides_nothing_later():
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as taken, simulate("8GiB"):
        torch.ones(1, device="cuda")
    assert taken is not None
    with simulate("8GiB") as machine:
        torch.ones(1, device="cuda")
        assert not machine.calls_are_hidden
