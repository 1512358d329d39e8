"""Memory of storages that died is given back at the next question, and the result is the same."""

import random
import sys
import threading

import pytest
import torch
from support.allocator_invariants import check_machine

from pytorch_memlab.simulation import simulate

REQUESTS = (512, 4096, 300_000, 2**20, 3 * 2**20, 12 * 2**20)


def a_program(seed):
    """Makes and drops tensors, in an order that a seed tells."""
    choose, kept = random.Random(seed), []
    for _ in range(120):
        if kept and choose.random() < 0.45:
            kept.pop(choose.randrange(len(kept)))
        elif choose.random() < 0.1:
            kept.append(torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda"))
        elif choose.random() < 0.1:
            torch.cuda.empty_cache()
        else:
            kept.append(torch.empty(choose.choice(REQUESTS), dtype=torch.uint8, device="cuda"))
    del kept


def observed(seed, at_once):
    """The events of the allocator for such a program, and its counters then."""
    events = []
    with simulate("128MiB") as machine:
        if at_once:
            machine.allocations.sweep_at_once()
        gpu = machine.gpus[0]
        gpu.allocator.observe(lambda *event: events.append(event))
        try:
            a_program(seed)
        except torch.OutOfMemoryError as error:
            events.append(str(error))
        check_machine(machine)
        stats = torch.cuda.memory_stats()
    return events, stats


@pytest.mark.parametrize("seed", range(6))
def test_the_allocator_does_the_same_in_the_same_order(seed):
    waiting = observed(seed, at_once=False)
    assert len(waiting[0]) > 60
    assert waiting == observed(seed, at_once=True)


def calls_when_a_tensor_dies(machine):
    tensor, calls = torch.empty(1000, device="cuda"), []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name))
    try:
        del tensor
    finally:
        sys.setprofile(None)
    return calls


def test_nothing_runs_at_a_death_unless_somebody_asks_for_its_moment():
    with simulate("1GiB") as machine:
        torch.empty(1000, device="cuda")
        assert "free" not in calls_when_a_tensor_dies(machine)
        assert torch.cuda.memory_allocated() == 0
        machine.allocations.sweep_at_once()
        assert "free" in calls_when_a_tensor_dies(machine)
        machine.allocations.sweep_later()
        assert "free" not in calls_when_a_tensor_dies(machine)
        assert torch.cuda.memory_allocated() == 0


def test_storages_from_before_are_swept_at_once_too():
    with simulate("1GiB") as machine:
        kept = [torch.empty(1000, device="cuda") for _ in range(3)]
        machine.allocations.sweep_at_once()
        freed = []
        machine.gpus[0].allocator.observe(lambda action, *_: freed.append(action))
        del kept[1]
        assert freed == ["free_requested", "free_completed"]
        machine.allocations.sweep_later()
        kept.clear()
        assert torch.cuda.memory_allocated() == 0
        assert freed == 3 * ["free_requested", "free_completed"]
        check_machine(machine)


def test_a_stream_that_records_later_holds_no_block_that_died_before():
    with simulate("1GiB"):
        side = torch.cuda.Stream()
        tensor = torch.empty(1000, device="cuda")
        tensor.record_stream(side)
        del tensor
        with torch.cuda.stream(side):
            torch.cuda._sleep(2**40)
        kept = torch.empty(1, device="cuda")  # the allocator looks at its events
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 512
        del kept


def test_another_thread_gives_back_what_died_here():
    with simulate("1GiB"):
        tensor = torch.empty(1000, device="cuda")
        del tensor
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.cuda.memory_allocated()))
        thread.start()
        thread.join()
        assert found == [0]


def test_the_text_of_a_machine_and_a_bound_count_no_dead_tensor():
    with simulate("1GiB") as machine:
        tensor = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        del tensor
        assert "0 B in use" in repr(machine)
        tensor = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        del tensor
        machine.gpus[0].note_uncounted(100)
        assert machine.gpus[0].peak_at_most() == 2**20
