"""Threads of a program that is simulated inside another simulation."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate


def run_in(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


@pytest.mark.parametrize("depth", [2, 3])
def test_a_thread_allocates_on_the_innermost_simulation(depth: int) -> None:
    held: list[torch.Tensor] = []

    def work() -> None:
        held.append(torch.empty(1024, device="cuda"))

    machines: list[Any] = []

    def nest(left: int) -> None:
        with simulate("24GiB") as machine:
            machines.append(machine)
            if left:
                nest(left - 1)
            else:
                run_in(threading.Thread(target=work))
                in_use = [machine.gpus[0].allocator.active_bytes for machine in machines]
                assert in_use == [0] * (depth - 1) + [4096]
                held.clear()

    nest(depth - 1)
    assert len(machines) == depth


def test_a_thread_of_the_outer_simulation_is_simulated_once() -> None:
    held: list[torch.Tensor] = []
    with simulate("24GiB") as outer:
        with simulate("24GiB"):
            pass
        run_in(threading.Thread(target=lambda: held.append(torch.empty(1024, device="cuda"))))
        assert outer.gpus[0].allocator.active_bytes == 4096
        held.clear()


def test_a_function_that_the_program_gave_a_thread_runs_and_stays() -> None:
    ran: list[str] = []

    def run() -> None:
        ran.append(str(torch.empty(1, device="cuda").device))

    thread = threading.Thread()
    thread.run = run  # type: ignore[method-assign]
    with simulate("24GiB"), simulate("24GiB"):
        run_in(thread)
    assert ran == ["cuda:0"]
    assert vars(thread)["run"] is run


def test_a_thread_that_ran_cannot_be_started_again_and_stays_as_it_was() -> None:
    thread = threading.Thread()
    with simulate("24GiB"), simulate("24GiB"):
        run_in(thread)
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
    assert "run" not in vars(thread)
