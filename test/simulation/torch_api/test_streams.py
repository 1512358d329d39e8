"""Streams of simulated GPUs: which there are, where backward runs, when blocks are used again."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import pytest
import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import simulate

MB = 2**20
FOREVER = 10**15  # cycles: 11 days


@pytest.fixture
def gpus() -> Any:
    with simulate("24GiB", count=2) as machine:
        yield machine


def buffer(size: int = MB) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def address(tensor: torch.Tensor) -> int:
    """The address of a tensor that is alone in its segment."""
    return next(
        block["address"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["requested_size"] == tensor.nbytes
    )


def streams_of_blocks() -> dict[int, list[int]]:
    """Sizes that were asked for, by the stream that holds them."""
    found: dict[int, list[int]] = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.setdefault(segment["stream"], []).append(block["requested_size"])
    return found


def test_a_gpu_has_32_streams_of_each_priority_in_turn(gpus: Any) -> None:
    ids = [torch.cuda.Stream().stream_id for _ in range(64)]
    assert ids[:3] == [3, 35, 67]
    assert ids[32:] == ids[:32]
    assert len(set(ids)) == 32
    urgent = [torch.cuda.Stream(priority=-1) for _ in range(33)]
    assert urgent[0].stream_id == urgent[32].stream_id == 5
    assert {stream.stream_id for stream in urgent}.isdisjoint(ids)
    other_gpu = torch.cuda.Stream(1)
    assert other_gpu.stream_id == 3
    assert other_gpu != torch.cuda.Stream(0)
    handles = {stream.cuda_stream for stream in (other_gpu, torch.cuda.default_stream())}
    assert len(handles | set(ids)) == 34


def test_every_simulation_begins_with_the_first_stream() -> None:
    for _ in range(2):
        with simulate("24GiB"):
            assert torch.cuda.Stream().stream_id == 3


def test_priorities_outside_the_range_mean_the_nearest(gpus: Any) -> None:
    assert torch.cuda.Stream.priority_range() == (0, -3)
    made = [torch.cuda.Stream(priority=priority).priority for priority in (7, 0, -2, -99)]
    assert made == [0, 0, -2, -3]
    assert torch.cuda.current_stream().priority == 0


def test_a_stream_per_step_reserves_no_more_than_32_do(gpus: Any) -> None:
    for _ in range(200):
        with torch.cuda.stream(torch.cuda.Stream()):
            buffer(4 * MB)
    assert torch.cuda.memory_reserved() == 32 * 20 * MB


class Double(torch.autograd.Function):
    """Remembers where its forward and its backward ran."""

    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.stream = torch.cuda.current_stream(x.device)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Double.seen.append((ctx.stream == torch.cuda.current_stream(), torch.cuda.current_device()))
        return grad * 2


def test_custom_functions_run_backward_on_their_stream_and_gpu(gpus: Any) -> None:
    Double.seen = []
    side = torch.cuda.Stream(1)
    leaf = torch.ones(4, device="cuda:1", requires_grad=True)
    with torch.cuda.stream(side):
        inside = Double.apply(leaf)
    Double.apply(Double.apply(inside)).sum().backward()
    assert Double.seen == [(True, 1)] * 3
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_gradients_come_from_the_pool_of_the_forward_stream(gpus: Any) -> None:
    side = torch.cuda.Stream()
    leaf = torch.ones(MB, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        (leaf * 3.0).sum().backward()
    assert leaf.grad is not None
    assert streams_of_blocks()[side.cuda_stream] == [4 * MB]
    leaf.grad = None

    with torch.cuda.stream(side):
        loss = (leaf * 3.0).sum()
    loss.backward()  # by the default stream
    assert streams_of_blocks()[side.cuda_stream] == [4 * MB, 4]
    leaf.grad = None
    del loss

    loss = (leaf * 3.0).sum()
    with torch.cuda.stream(side):
        loss.backward()
        assert torch.cuda.current_stream() == side
    assert side.cuda_stream not in streams_of_blocks()
    assert streams_of_blocks()[0] == [4 * MB, 4 * MB, 4]


def test_the_gradient_of_a_leaf_is_accumulated_on_the_stream_that_first_used_it(gpus: Any) -> None:
    """Not on that of the node that ran before it; so also in a backward pass inside another."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    seen: list[torch.cuda.Stream] = []

    def watched() -> torch.Tensor:
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        leaf.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
        return leaf

    def used_twice(leaf: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(first):
            one = leaf.view(3)  # its node allocates nothing
        with torch.cuda.stream(second):
            return (one * 2 + leaf * 3).sum()

    def with_inner_pass(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            used_twice(watched()).backward()

    leaf = watched()
    loss = used_twice(leaf)
    loss.register_hook(with_inner_pass)
    loss.backward()
    assert seen == [first, first]
    edge = torch.autograd.graph.get_gradient_edge(used_twice(leaf))
    torch.autograd.grad(edge, leaf)
    assert seen == [first] * 3
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_stream_that_backward_chooses_holds_until_its_node_ends(gpus: Any) -> None:
    outer, inner = torch.cuda.Stream(), torch.cuda.Stream()
    seen = []

    class Wanders(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            torch.cuda.set_stream(inner)
            result = grad * 1
            seen.append(torch.cuda.current_stream())
            return result

    leaf = torch.ones(3, device="cuda", requires_grad=True)
    with torch.cuda.stream(outer):
        made = Wanders.apply(leaf)
    middle = made * 2
    middle.register_hook(lambda grad: seen.append(torch.cuda.current_stream()))
    Double.seen = []
    (Double.apply(middle) * 2).sum().backward()
    assert seen == [torch.cuda.default_stream(), inner]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_what_is_computed_again_runs_on_the_stream_of_the_first_time(gpus: Any) -> None:
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_stream())
        return Double.apply(x).sin()

    Double.seen = []
    side = torch.cuda.Stream()
    leaf = torch.ones(5, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        out = torch.utils.checkpoint.checkpoint(block, leaf, use_reentrant=True)
    out.sum().backward()
    assert seen == [side, side]
    assert Double.seen == [(True, 0)]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_each_thread_finds_the_streams_of_its_own_forward(gpus: Any) -> None:
    Double.seen = []
    barrier = threading.Barrier(2)

    def step(index: int) -> None:
        leaf = torch.ones(4, device=f"cuda:{index}", requires_grad=True)
        with torch.cuda.stream(torch.cuda.Stream(index)):
            out = Double.apply(leaf)
        barrier.wait(30)
        out.sum().backward()

    threads = [threading.Thread(target=step, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Double.seen) == [(True, 0), (True, 1)]


def test_a_thread_remembers_a_bounded_number_of_changes(gpus: Any) -> None:
    from pytorch_memlab.simulation.machine import streams as backward_streams

    leaf = torch.ones(1, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(backward_streams, "_MOST_CHANGES", 10)
        for _ in range(50):
            with torch.cuda.stream(side):
                out = Double.apply(leaf * 1)
        changes = gpus.thread.streams
        assert len(changes._numbers) == len(changes._streams) <= 10
        Double.seen = []
        out.backward()
        assert Double.seen == [(True, 0)]


def test_a_block_is_used_again_when_the_stream_that_reads_it_is_synchronized(gpus: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        shared = buffer(20 * MB)
    before = address(shared)
    shared.record_stream(torch.cuda.current_stream())
    torch.cuda._sleep(FOREVER)
    del shared
    with torch.cuda.stream(side):
        second = buffer(20 * MB)
        assert address(second) != before
        del second
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(side):
        third, fourth = buffer(20 * MB), buffer(20 * MB)
    assert torch.cuda.memory_reserved() == 40 * MB
    del third, fourth


WAITS = {
    "device": lambda event, x: torch.cuda.synchronize(),
    "stream": lambda event, x: torch.cuda.current_stream().synchronize(),
    "event": lambda event, x: event.synchronize(),
    "item": lambda event, x: x.sum().item(),
    "bool": lambda event, x: bool(x[0] > 0),
    "tolist": lambda event, x: x.tolist(),
    "print": lambda event, x: str(x),
    "copy to the host": lambda event, x: x.cpu(),
    "copy into the host": lambda event, x: torch.ones(3).copy_(x),
    "copy into pageable memory": lambda event, x: torch.ones(3).copy_(x, non_blocking=True),
    "copy from the host": lambda event, x: torch.ones(3).cuda(),
    "sizes": lambda event, x: x.nonzero(),
    "mask": lambda event, x: x[x > 0],
    "store by mask": lambda event, x: x.index_put((x > 0,), x[0]),
    "equal": lambda event, x: torch.equal(x, x),
    "accelerator": lambda event, x: torch.accelerator.synchronize(),
}
GOES_ON = {
    "arithmetic": lambda event, x: x + x,
    "index": lambda event, x: x[x.long()],
    "pinned copy to the host": lambda event, x: x.to("cpu", non_blocking=True),
    "copy into pinned": lambda event, x: torch.ones(3).pin_memory().copy_(x, non_blocking=True),
    "unwaited copy": lambda event, x: torch.ones(3).cuda(non_blocking=True),
    "copy on the gpu": lambda event, x: x.clone().copy_(x),
    "other stream": lambda event, x: torch.cuda.Stream().synchronize(),
    "other gpu": lambda event, x: torch.cuda.synchronize(1),
    "older event": lambda event, x: x.older.synchronize(),
    "query": lambda event, x: event.query(),
}


@computed_or_dry
@pytest.mark.parametrize("name", [*WAITS, *GOES_ON])
def test_a_stream_sleeps_until_the_host_waits_for_it(name: str, compute: bool) -> None:
    with simulate("24GiB", count=2, compute=compute):
        x: Any = torch.ones(3, device="cuda")
        x.older = torch.cuda.Event()
        x.older.record()
        torch.cuda._sleep(FOREVER)
        event = torch.cuda.Event()
        event.record()
        assert (torch.cuda.current_stream().query(), event.query()) == (False, False)
        assert x.older.query()
        (WAITS | GOES_ON)[name](event, x)
        assert torch.cuda.current_stream().query() is event.query() is (name in WAITS)


def test_an_event_is_done_before_the_sleep_that_follows_it(gpus: Any) -> None:
    stream, first, second = torch.cuda.current_stream(), torch.cuda.Event(), torch.cuda.Event()
    torch.cuda._sleep(FOREVER)
    first.record()
    torch.cuda._sleep(FOREVER)
    second.record()
    first.synchronize()
    assert (first.query(), second.query(), stream.query()) == (True, False, False)
    second.synchronize()
    assert (second.query(), stream.query()) == (True, True)


def test_a_stream_that_waits_is_done_with_what_it_waits_for(gpus: Any) -> None:
    sleeper, waiter, other_gpu = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream(1)
    with torch.cuda.stream(sleeper):
        torch.cuda._sleep(FOREVER)
    waiter.wait_stream(sleeper)
    other_gpu.wait_stream(waiter)
    assert [one.query() for one in (sleeper, waiter, other_gpu)] == [False] * 3
    sleeper.synchronize()
    assert [one.query() for one in (sleeper, waiter, other_gpu)] == [True] * 3

    with torch.cuda.stream(sleeper):
        torch.cuda._sleep(FOREVER)
    other_gpu.wait_stream(sleeper)
    waiter.wait_stream(sleeper)
    torch.cuda.synchronize(1)  # which has to wait for the sleeper too
    assert [one.query() for one in (sleeper, waiter, other_gpu)] == [True] * 3


def test_streams_may_wait_for_each_other_many_times(gpus: Any) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        torch.cuda._sleep(FOREVER)
    for _ in range(5000):
        second.wait_stream(first)
        first.wait_stream(second)
    assert not second.query()
    second.synchronize()
    assert first.query()


def test_a_backward_pass_waits_for_what_its_streams_have_to_do(gpus: Any) -> None:
    class Sleeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(FOREVER)
            return grad * 2

    side = torch.cuda.Stream()
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        out = Sleeps.apply(leaf)
    out.sum().backward()
    assert not torch.cuda.current_stream().query()
    torch.cuda.current_stream().synchronize()
    assert side.query()


def test_a_program_that_polls_comes_to_an_end(gpus: Any) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(10**6)
    end.record()
    until = time.perf_counter() + 30
    while not end.query():
        assert time.perf_counter() < until
    assert torch.cuda.current_stream().query()
    assert start.elapsed_time(end) >= 1.0  # a million cycles at 1 GHz


def test_the_time_of_what_is_not_done_is_refused(gpus: Any) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(FOREVER)
    end.record()
    with pytest.raises(RuntimeError, match="device not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(FOREVER / 1e6)


def test_a_stream_as_context_switches_the_gpu_too(gpus: Any) -> None:
    side = torch.cuda.Stream(1)
    with side as entered:
        assert entered is side
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == side
        with torch.cuda.Stream(0), side:
            assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (1, side)
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (1, side)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_no_time_passes_between_events_of_two_gpus() -> None:
    with simulate("t4", count=2):
        events = []
        for index in range(2):
            with torch.cuda.device(index):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                events.append(event)
        with pytest.raises(RuntimeError, match="CUDA error: invalid resource handle"):
            events[0].elapsed_time(events[1])
        assert events[1].elapsed_time(events[1]) == 0
