"""CUDA graphs: what a capture takes, what a replay computes, and what CUDA forbids in between."""

from __future__ import annotations

import ctypes
import gc
import inspect
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pytorch_memlab import MemReporter, explain_oom, simulate
from pytorch_memlab.history.replay import check_replay
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.render.memory_report import sums
from pytorch_memlab.simulation.dispatch.captured_ops import run_kernel
from pytorch_memlab.simulation.machine.torch_release import RELEASE

MB = 2**20

OWN_HOLDERS = RELEASE >= (2, 12)
"""Each graph has its own seed and offset, on the default stream."""

REGISTERS_DRAWS = RELEASE >= (2, 14)
"""A graph has seed and offset of the generators that its ops draw from, and of no other."""

NO_CAPTURE = (
    r"capture_end\(\) must have been called"
    if RELEASE >= (2, 14)  # whose replay instantiates in Python
    else "without a preceding successful capture"
)


@pytest.fixture
def gpu() -> Iterator[Any]:
    with simulate("h100", context=0) as machine:
        yield machine.gpus[0]


def segments() -> list[tuple[tuple[int, int], int, int]]:
    """Pool, stream and bytes of each segment."""
    return [
        (one["segment_pool_id"], one["stream"], one["total_size"])
        for one in torch.cuda.memory_snapshot()
    ]


def private_bytes() -> int:
    return sum(size for pool, _, size in segments() if pool != (0, 0))


def captured(function: Any, **options: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = function()
    return graph, result


# Memory


def test_a_capture_keeps_what_it_took_until_the_graph_is_reset(gpu: Any) -> None:
    x = torch.zeros(MB, device="cuda")  # 4 MiB of a segment of 20
    graph, y = captured(lambda: (x + 1) * 2)
    # Two tensors of 4 MiB at once, in a segment of the pool; the eager cache served neither.
    assert [size for pool, _, size in segments() if pool == graph.pool()] == [20 * MB]
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        graph.replay()
    assert torch.cuda.memory_allocated() == before
    del y
    torch.cuda.empty_cache()
    assert private_bytes() == 20 * MB
    z = torch.zeros(MB, device="cuda")
    assert [size for pool, _, size in segments() if pool == (0, 0) and size > 2 * MB] == [20 * MB]
    graph.reset()
    assert private_bytes() == 20 * MB
    torch.cuda.empty_cache()
    assert private_bytes() == 0
    assert x.device == z.device


def test_a_graph_that_dies_leaves_its_living_results(gpu: Any) -> None:
    x = torch.ones(3 * MB, device="cuda")
    graph, y = captured(lambda: (x + 1) * 2)
    graph.replay()
    assert private_bytes() == 24 * MB
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert private_bytes() == 12 * MB
    assert y.sum().item() == 3 * MB * 4
    del y
    torch.cuda.empty_cache()
    assert private_bytes() == 0


def test_the_holders_of_seed_and_offset_are_counted(gpu: Any) -> None:
    before = torch.cuda.memory_allocated()
    graph, y = captured(lambda: torch.rand(1, device="cuda"))
    assert torch.cuda.memory_allocated() == before + 3 * 512
    other, z = captured(lambda: torch.rand(1, device="cuda").add_(torch.rand(1, device="cuda")))
    assert torch.cuda.memory_allocated() == before + (6 if OWN_HOLDERS else 4) * 512
    # Nothing of them is in the pools of the captures.
    private = [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] != (0, 0)]
    assert sum(one["allocated_size"] for one in private) == 2 * 512
    graph.reset()
    other.reset()
    del y, z
    assert torch.cuda.memory_allocated() == before


def test_a_graph_that_draws_nothing_may_have_no_holders(gpu: Any) -> None:
    x = torch.ones(1, device="cuda")
    before = torch.cuda.memory_allocated()
    graph, y = captured(lambda: x + 1)
    assert torch.cuda.memory_allocated() == before + (1 if REGISTERS_DRAWS else 3) * 512
    graph.replay()
    assert y.item() == 2


def test_graphs_share_a_pool(gpu: Any) -> None:
    x = torch.zeros(8 * MB, dtype=torch.uint8, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    graphs = [captured(lambda: x + 1, pool=pool)[0] for _ in range(3)]
    assert [graph.pool() for graph in graphs] == [pool] * 3 == [(0, 1)] * 3
    assert private_bytes() == 20 * MB
    apart = [captured(lambda: x + 1)[0] for _ in range(2)]
    assert [graph.pool() for graph in apart] == [(1, 0), (2, 0)]
    assert private_bytes() == 60 * MB
    stats = torch.cuda.memory_stats()
    if "reserved_bytes_by_private_pools.0_1.all.current" in stats:
        assert stats["reserved_bytes_by_private_pools.0_1.all.current"] == 20 * MB
    for graph in graphs[1:]:
        graph.reset()
    torch.cuda.empty_cache()
    assert private_bytes() == 60 * MB
    graphs[0].reset()
    torch.cuda.empty_cache()
    assert private_bytes() == 40 * MB


def test_a_dry_run_takes_the_same_memory() -> None:
    found = []
    for compute in (True, False):
        with simulate("h100", compute=compute):
            model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
            x = torch.randn(32, 64, device="cuda")
            graph, y = captured(lambda model=model, x=x: model(x))
            graph.replay()
            found.append((segments(), torch.cuda.memory_stats(), y.shape))
    assert found[0] == found[1]


def test_the_workspace_of_cublas_lands_in_the_pool(gpu: Any) -> None:
    x = torch.randn(64, 64, device="cuda")
    x @ x  # the workspace of the default stream
    assert torch.cuda.memory_reserved() == (32 + 2) * MB
    graph, y = captured(lambda: x @ x)
    # The stream of the capture has another one.
    pool = [size for pool, _, size in segments() if pool == graph.pool()]
    assert sorted(pool) == [2 * MB, 32 * MB]
    graph.reset()
    del y
    torch.cuda.empty_cache()
    assert private_bytes() == (0 if RELEASE >= (2, 12) else 32 * MB)
    x @ x
    assert torch.cuda.memory_allocated() == 32 * MB + x.nbytes + 32 * MB * (RELEASE < (2, 12))
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert private_bytes() == 0


def test_memory_runs_out_in_a_capture_though_the_cache_is_full() -> None:
    with simulate("1GiB", context=0):
        torch.empty(600 * MB, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.empty(600 * MB, dtype=torch.uint8, device="cuda")  # the cache goes back
            graph.capture_begin()
            with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 600\.00 MiB"):
                torch.empty(600 * MB, dtype=torch.uint8, device="cuda")
            torch.zeros(1, device="cuda")
            graph.capture_end()
        torch.empty(600 * MB, dtype=torch.uint8, device="cuda")


@pytest.mark.skipif(RELEASE < (2, 13), reason="graphs of older releases have other seeds")
def test_the_report_of_an_error_names_what_graphs_keep() -> None:
    with simulate("1GiB", context=0):
        seed = torch.ones(1, device="cuda")
        graph, y = captured(lambda: torch.ones(300 * MB, dtype=torch.uint8, device="cuda"))
        del y
        with pytest.raises(torch.OutOfMemoryError), explain_oom() as explained:
            torch.ones(800 * MB, dtype=torch.uint8, device="cuda")
        graph.reset()
        del seed
    line = captured.__code__.co_firstlineno + 2
    assert explained.report is not None
    text = " ".join(explained.report.split())
    in_use = "512 B" if REGISTERS_DRAWS else "1.5 KiB"
    assert f"in use {in_use}, cached 2.0 MiB (largest block 2.0 MiB), free 722.0 MiB" in text
    where = f"test_cuda_graphs.py:{line}"
    assert f"CUDA graphs keep 300.0 MiB more that no other code gets (1 capture: {where})" in text


def test_the_report_of_the_memory_has_a_row_for_graphs(gpu: Any) -> None:
    x = torch.ones(3 * MB, device="cuda")
    graph, y = captured(lambda: (x + 1) * 2)
    [record] = MemReporter().snapshot().reconciliations
    assert (record.graphs, record.cached) == (12 * MB, 0 if REGISTERS_DRAWS else 2 * MB - 1024)
    assert record.allocated + record.graphs + record.cached == record.reserved
    assert dict(sums(record))["+ reserved by CUDA graphs"] == 12 * MB
    assert y.device == x.device
    graph.reset()


@pytest.mark.skipif(RELEASE < (2, 12), reason="snapshots name the pools of events from 2.12 on")
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_snapshot_of_a_program_with_graphs_is_replayed(settings: str) -> None:
    with simulate("h100", compute=False):
        torch._C._accelerator_setAllocatorSettings(settings or "expandable_segments:False")
        torch.cuda.memory._record_memory_history()
        x = torch.randn(512, 1024, device="cuda")
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        graphs = []
        for rows in (512, 256, 128):
            pool = graphs[0].pool() if graphs else None
            graphs.append(captured(lambda rows=rows: model(x[:rows]).sum(), pool=pool)[0])
        y = model(x)
        graphs.clear()
        torch.cuda.empty_cache()
        snapshot = torch.cuda.memory._snapshot()
    del y
    pools = {one["pool_id"] for one in snapshot["device_traces"][0]}
    assert pools == {(0, 0), (1, 0)}
    check = check_replay(history_of(snapshot))
    assert check.matches, check.first
    assert check.allocations > 20


# Values


def test_a_capture_changes_nothing_and_a_replay_does(gpu: Any) -> None:
    x = torch.ones(8, device="cuda")
    total = torch.zeros((), device="cuda")

    def step() -> torch.Tensor:
        x.mul_(2)
        total.add_(x.sum())
        return x + total

    graph, y = captured(step)
    assert (x.tolist(), total.item()) == ([1.0] * 8, 0)
    graph.replay()
    assert (x.tolist(), total.item()) == ([2.0] * 8, 16)
    assert y.tolist() == [18.0] * 8
    x.fill_(3)
    graph.replay()
    assert (x.tolist(), total.item()) == ([6.0] * 8, 64)
    assert y.tolist() == [70.0] * 8


def test_graphs_write_to_the_addresses_of_their_captures(gpu: Any) -> None:
    """The order of replays decides what is read, where two graphs use one block in turn."""
    pool = torch.cuda.graph_pool_handle()
    a = torch.ones(1000, device="cuda")
    first, (b, c, d) = captured(lambda: (a.clone(), a + 1, a + 2), pool=pool)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool):
        e = c + 3
    del c
    third, f = captured(lambda: d + 4, pool=pool)
    for graph in (first, second, third):
        graph.replay()
    assert (e[0].item(), f[0].item()) == (5, 7)
    for graph in (first, third, second):
        graph.replay()
    assert (e[0].item(), f[0].item()) == (7 + 3, 7)
    assert b[0].item() == 1


def test_random_numbers_go_on_where_the_generator_is(gpu: Any) -> None:
    x = torch.ones(1000, device="cuda")
    torch.cuda.manual_seed(5)
    expected = [nn.functional.dropout(nn.functional.dropout(x, 0.1), 0.1) for _ in range(3)]
    offset = torch.cuda.default_generators[0].get_offset()
    torch.cuda.manual_seed(5)
    graph, y = captured(lambda: nn.functional.dropout(nn.functional.dropout(x, 0.1), 0.1))
    assert torch.cuda.default_generators[0].get_offset() == 0
    for one in expected:
        graph.replay()
        assert torch.equal(y, one)
    assert torch.cuda.default_generators[0].get_offset() == offset == 24
    torch.cuda.manual_seed(6)
    graph.replay()
    assert not torch.equal(y, expected[0])


def test_another_generator_is_registered_with_the_graph(gpu: Any) -> None:
    generator = torch.Generator("cuda")
    generator.manual_seed(1)
    graph = torch.cuda.CUDAGraph()
    if not REGISTERS_DRAWS:
        with pytest.raises(RuntimeError, match="not in capture mode"), torch.cuda.graph(graph):
            torch.rand(4, device="cuda", generator=generator)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        x = torch.rand(4, device="cuda", generator=generator)
    graph.replay()
    generator.manual_seed(1)
    assert torch.equal(x, torch.rand(4, device="cuda", generator=generator))


def test_several_graphs_have_seeds_and_offsets_of_several_generators(gpu: Any) -> None:
    """Each is 8 bytes, in a block of 512 bytes."""
    default = torch.cuda.default_generators[0]
    generators = [default.graphsafe_get_state(), *(default.clone_state() for _ in range(3))]
    graphs = [torch.cuda.CUDAGraph() for _ in range(5)]
    for graph in graphs:
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            torch.rand(1, device="cuda")
        graph.replay()
    pairs = 5 if REGISTERS_DRAWS else 5 * 4 if OWN_HOLDERS else 4
    stats = torch.cuda.memory_stats()
    assert stats["active.all.current"] == 2 * pairs
    assert stats["active_bytes.all.current"] == 2 * pairs * 512
    graphs.clear()
    del graph
    assert torch.cuda.memory_stats()["active.all.current"] == 0


def test_autocast_that_is_on_at_a_replay_changes_nothing(gpu: Any) -> None:
    x = torch.randn(4, 4, device="cuda")
    graph, y = captured(lambda: x @ x)
    graph.replay()
    expected = y.clone()
    with torch.autocast("cuda"), torch.inference_mode():
        graph.replay()
    assert torch.equal(y, expected)


def test_pinned_memory_is_read_again_at_each_replay(gpu: Any) -> None:
    source = torch.ones(4).pin_memory()
    target = torch.zeros(4, device="cuda")
    back = torch.zeros(4).pin_memory()

    def step() -> None:
        target.copy_(source, non_blocking=True)
        target.add_(1)
        back.copy_(target, non_blocking=True)

    graph, _ = captured(step)
    assert back.tolist() == target.tolist() == [0.0] * 4
    source.fill_(5)
    graph.replay()
    assert back.tolist() == target.tolist() == [6.0] * 4


def test_memory_that_was_freed_after_the_capture_is_named(gpu: Any) -> None:
    inputs = [torch.ones(4, device="cuda")]
    graph, y = captured(lambda: inputs[0] + 1)
    graph.replay()
    inputs.clear()
    with pytest.warns(UserWarning, match="a CUDA graph uses 16 bytes that the program freed"):
        graph.replay()
    assert y.tolist() == [1.0] * 4
    new = torch.full((4,), 3.0, device="cuda")
    with pytest.warns(UserWarning, match="the program freed"):
        graph.replay()
    assert (new.tolist(), y.tolist()) == ([3.0] * 4, [4.0] * 4)


def test_kernels_of_the_program_run_again_too() -> None:
    """A Triton kernel comes to the simulation as a function of its arguments."""

    def double(arguments: dict[str, Any]) -> None:
        with machine.thread.host_addresses():
            address, count = arguments["x"].data_ptr(), arguments["count"]
        numbers = (ctypes.c_float * count).from_address(address)
        numbers[:] = [2 * number for number in numbers]

    with simulate("h100") as machine:
        x = torch.ones(4, device="cuda")

        def work() -> torch.Tensor:
            y = x + 1
            for tensor in (x, y):
                run_kernel(machine, 0, double, {"x": tensor, "count": 4})
            return y

        graph, y = captured(work)
        assert x.tolist() == [1.0] * 4
        for first, second in ((2, 4), (4, 6)):
            graph.replay()
            assert (x.tolist(), y.tolist()) == ([first] * 4, [second] * 4)
        run_kernel(machine, 0, double, {"x": x, "count": 4})
        assert x.tolist() == [8.0] * 4


def test_a_whole_training_step_is_captured(gpu: Any) -> None:
    """PyTorch's own example of a captured network, with an optimizer that is capturable."""
    torch.manual_seed(0)
    graphed, control = (nn.Linear(16, 4).cuda() for _ in range(2))
    control.load_state_dict(graphed.state_dict())
    x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
    data = [(torch.randn_like(x), torch.randn_like(y)) for _ in range(3)]
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
        for model in (graphed, control)
    ]

    def step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step(graphed, optimizers[0], x, y)
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(2):
        step(control, optimizers[1], x, y)
    graph = torch.cuda.CUDAGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, stream=side):
        loss = nn.functional.mse_loss(graphed(x), y)
        loss.backward()
        optimizers[0].step()
    before = torch.cuda.memory_allocated()
    for one, other in data:
        x.copy_(one)
        y.copy_(other)
        graph.replay()
        expected = step(control, optimizers[1], one, other)
        torch.testing.assert_close(loss, expected)
    for parameter, other in zip(graphed.parameters(), control.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)
    del expected
    assert torch.cuda.memory_allocated() - before < MB


def test_graphed_callables_train_as_their_modules(gpu: Any) -> None:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)) for _ in range(2)]
    control, model = (one.cuda() for one in made)
    model.load_state_dict(control.state_dict())
    x = torch.randn(4, 8, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (x.clone(),))
    grads = []
    for one in (control, graphed):
        torch.cuda.manual_seed(3)
        for _ in range(2):  # the gradients are those of the graph, which writes to them again
            one.zero_grad(set_to_none=True)
            one(x).square().sum().backward()
        grads.append([parameter.grad for parameter in one.parameters()])
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)
    assert graphed.training
    graphed.eval()
    assert torch.equal(graphed(x), control.eval()(x))


# What CUDA forbids

UNSUPPORTED = "operation not permitted when stream is capturing"
INVALIDATED = "operation failed due to a previous error during capture"
UNPINNED = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU"


@pytest.mark.parametrize(
    "call",
    [
        lambda _: torch.cuda.synchronize(),
        lambda _: torch.cuda.current_stream().synchronize(),
        lambda _: torch.cuda.current_stream().query(),
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 1),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.zeros(8).pin_memory().copy_(x),
    ],
)
@pytest.mark.parametrize("compute", [True, False])
def test_what_waits_ends_the_capture(call: Any, compute: bool) -> None:
    with simulate("h100", compute=compute):
        x = torch.ones(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            with pytest.raises(RuntimeError, match=UNSUPPORTED) as caught:
                call(x)
            assert "cudaErrorStreamCaptureUnsupported" in str(caught.value)
            with pytest.raises(RuntimeError, match=INVALIDATED):
                x + 1
            assert torch.cuda.is_current_stream_capturing()
            with pytest.raises(RuntimeError, match=INVALIDATED):
                graph.capture_end()
            assert not torch.cuda.is_current_stream_capturing()
            x + 1
        with pytest.raises(RuntimeError, match=NO_CAPTURE):
            graph.replay()


@pytest.mark.skipif(RELEASE < (2, 9), reason="PyTorch looks at the memory of the CPU from 2.9 on")
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.zeros(8)),
        lambda x: torch.zeros(8).to("cuda", non_blocking=True),
        lambda x: torch.tensor([1.0], device="cuda"),
    ],
)
def test_copies_of_memory_that_is_not_pinned_are_refused(gpu: Any, call: Any) -> None:
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match=UNPINNED):
            call(x)
        y = x + 1
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([1.0] * 8, [2.0] * 8)


def test_a_capture_needs_a_stream_of_its_own(gpu: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="CUDA graphs must be captured on a non-default stream"):
        graph.capture_begin()
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="strict")
        graph.capture_begin()
        other = torch.cuda.stream(torch.cuda.Stream())
        with other, pytest.raises(RuntimeError, match="Capture must end on the same stream it"):
            graph.capture_end()
        torch.zeros(1, device="cuda")
        graph.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
    graph.reset()
    for call, message in (
        (graph.replay, NO_CAPTURE),
        (graph.pool, "without a preceding successful capture"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_an_empty_graph_is_told(gpu: Any) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: (x.view(2, 2), torch.empty(3, device="cuda")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(lambda: torch.zeros(3, device="cuda"))


def test_the_warning_of_an_empty_graph_names_the_call_of_c(gpu: Any) -> None:
    """C++ warns at the frame of Python that called it, which is torch's own."""
    lines, first = inspect.getsourcelines(torch.cuda.CUDAGraph.capture_end)
    of_torch = {first + place for place, line in enumerate(lines) if "super().capture_end" in line}
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        captured(lambda: None)
        with torch.cuda.stream(stream):
            graph.capture_begin()
            graph.capture_end()
    assert [warning.filename for warning in shown] == [torch.cuda.graphs.__file__] * 2
    assert {warning.lineno for warning in shown} <= of_torch


def test_an_empty_graph_is_made_though_its_warning_is_an_error(gpu: Any) -> None:
    """C++ keeps its warnings until the call is over."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="The CUDA Graph is empty"):
                graph.capture_end()
        assert not torch.cuda.is_current_stream_capturing()
    graph.replay()
    with (
        pytest.raises(RuntimeError, match="already owns a captured graph"),
        torch.cuda.stream(stream),
    ):
        graph.capture_begin()


def test_streams_join_a_capture_by_events_and_must_come_back(gpu: Any) -> None:
    x = torch.ones(4, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        assert not side.is_capturing()
        side.wait_stream(main)
        assert side.is_capturing()
        with torch.cuda.stream(side):
            y = x + 1
        main.wait_stream(side)
        z = y + 1
    assert not side.is_capturing()
    graph.replay()
    assert z.tolist() == [3.0] * 4
    pool = graph.pool()
    assert {stream for one, stream, _ in segments() if one == pool} == {
        main.cuda_stream,
        side.cuda_stream,
    }

    def leave_work_behind() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x + 1

    with pytest.raises(RuntimeError, match="capturing stream has unjoined work"):
        captured(leave_work_behind)


def test_events_connect_no_captured_work_with_other_work(gpu: Any) -> None:
    x = torch.ones(4, device="cuda")
    event = torch.cuda.Event()
    event.record()

    def wait_for_other_work() -> None:
        torch.cuda.current_stream().wait_event(torch.cuda.Event())  # never recorded
        x + 1
        with pytest.raises(RuntimeError, match="dependency created on uncaptured work"):
            torch.cuda.current_stream().wait_event(event)

    def query() -> None:
        event.record()
        with pytest.raises(RuntimeError, match="an event last recorded in a capturing stream"):
            event.query()

    def let_the_default_stream_wait() -> None:
        event.record()
        with pytest.raises(RuntimeError, match="would make the legacy stream depend"):
            torch.cuda.default_stream().wait_event(event)

    for work in (wait_for_other_work, query, let_the_default_stream_wait):
        with pytest.raises(RuntimeError, match=INVALIDATED):
            captured(work)


@pytest.mark.parametrize(
    ("mode", "ends"), [("global", True), ("thread_local", False), ("relaxed", False)]
)
def test_the_mode_tells_which_threads_may_take_memory(gpu: Any, mode: str, ends: bool) -> None:
    failures: list[RuntimeError] = []

    def take() -> None:
        try:
            torch.empty(30 * MB, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:
            failures.append(error)

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        torch.zeros(1, device="cuda")
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        if ends:
            with pytest.raises(RuntimeError, match=INVALIDATED):
                graph.capture_end()
        else:
            graph.capture_end()
    assert [UNSUPPORTED in str(error) for error in failures] == [True] * ends


def test_the_generator_is_not_set_in_a_capture(gpu: Any) -> None:
    generator = torch.cuda.default_generators[0]
    generator.manual_seed(7)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.rand(1, device="cuda")
        generator.manual_seed(7)
        for call in (lambda: generator.set_offset(4), generator.get_offset):
            with pytest.raises(RuntimeError, match="during CUDA graph capture"):
                call()
        with pytest.raises(RuntimeError, match="only if new seed is the same"):
            generator.manual_seed(8)
    assert generator.initial_seed() == 7


# Pools


def test_a_memory_pool_is_of_the_current_device() -> None:
    with simulate("24GiB", count=2):
        torch.cuda.set_device(1)
        pool = torch.cuda.MemPool()
        torch.cuda.set_device(0)
        assert (pool.device, torch.cuda.MemPool().device) == (1, 0)


def test_a_memory_pool_serves_its_thread(gpu: Any) -> None:
    pool = torch.cuda.MemPool()
    assert (pool.id, pool.use_count()) == ((0, 1), 1)
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = torch.ones(MB, device="cuda")
        thread = threading.Thread(target=lambda: torch.ones(MB, device="cuda"))
        thread.start()
        thread.join()
    y = torch.ones(MB, device="cuda")
    assert pool.use_count() == 1
    assert [(one, size) for one, _, size in segments()] == [(pool.id, 20 * MB), ((0, 0), 20 * MB)]
    assert [one["total_size"] for one in pool.snapshot()] == [20 * MB]
    del x
    del pool
    gc.collect()
    assert [one for one, _, _ in segments()] == [(0, 0)]
    assert y[0].item() == 1


def test_a_pool_with_a_graph_outlives_the_program_s_reference(gpu: Any) -> None:
    pool = torch.cuda.MemPool()
    graph, x = captured(lambda: torch.ones(MB, device="cuda"), pool=pool.id)
    assert (graph.pool(), pool.use_count()) == (pool.id, 2)
    del pool
    gc.collect()
    assert private_bytes() == 20 * MB
    graph.reset()
    del x
    torch.cuda.empty_cache()
    assert private_bytes() == 0


@pytest.mark.skipif(RELEASE < (2, 9), reason="later releases alone have these options")
def test_the_options_of_a_pool(gpu: Any) -> None:
    whole = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(whole):
        kept = [torch.ones(1, device="cuda") for _ in range(2)]
    assert private_bytes() == 4 * MB
    assert torch.cuda.memory_allocated() == 4 * MB
    del kept
    with simulate("100MiB", context=0):
        spare = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(spare):
            torch.ones(60 * MB, dtype=torch.uint8, device="cuda")
        first = torch.ones(40 * MB, dtype=torch.uint8, device="cuda")
        second = torch.ones(50 * MB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 100 * MB
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(11 * MB, dtype=torch.uint8, device="cuda")
        assert first.nbytes < second.nbytes


@pytest.mark.skipif(RELEASE < (2, 14), reason="a graph keeps pools from 2.14 on")
def test_a_pool_that_a_capture_uses_is_kept_by_the_graph(gpu: Any) -> None:
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.CUDAGraph.get_currently_capturing_graph() is graph
        for one in (pool, other, pool):
            with torch.cuda.use_mem_pool(one):
                x = torch.ones(MB, device="cuda")
        y = x + 1
    assert graph.pools() == [graph.pool(), pool.id, other.id]
    assert (pool.use_count(), other.use_count()) == (2, 2)
    graph.replay()
    assert y.sum().item() == 2 * MB
    graph.reset()
    assert (pool.use_count(), other.use_count()) == (1, 1)
    with pytest.raises(RuntimeError, match="not currently capturing"):
        torch.cuda.CUDAGraph.get_currently_capturing_graph()
    with pytest.raises(RuntimeError, match="may only be called during capture"):
        graph._retain_pool(pool)


def test_a_capture_that_failed_gives_its_pool_up(gpu: Any) -> None:
    """From 2.13 on it takes no more requests, and from 2.14 on the pool is empty after a reset."""
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool=pool)
        x = torch.ones(MB, device="cuda")
        with pytest.raises(RuntimeError, match=UNSUPPORTED):
            x.sum().item()
        with pytest.raises(RuntimeError, match=INVALIDATED):
            graph.capture_end()
    still_takes = [one for one, _ in gpu.allocator.private.filters]
    assert still_takes == ([pool] if RELEASE < (2, 13) else [])
    del x
    graph.reset()
    torch.cuda.empty_cache()
    assert private_bytes() == (0 if RELEASE >= (2, 14) else 22 * MB)


def test_the_low_level_calls_route_requests(gpu: Any) -> None:
    pool = torch.cuda.graph_pool_handle()
    names = ["_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentStreamToPool"]
    for name in names:
        getattr(torch._C, name)(0, pool)
        torch.ones(MB, device="cuda")
        torch._C._cuda_endAllocateToPool(0, pool)
    with pytest.raises(RuntimeError, match="not currently recording"):
        torch._C._cuda_endAllocateToPool(0, pool)
    assert private_bytes() == 20 * MB
    for _ in names:
        torch._C._cuda_releasePool(0, pool)
    torch.cuda.empty_cache()
    assert private_bytes() == 0


def test_the_state_of_a_pool_is_kept_and_set(gpu: Any) -> None:
    """Storages that were made over addresses of the pool free them, once they are named."""
    x = torch.ones(1, device="cuda")
    graph, y = captured(lambda: torch.ones(MB, device="cuda") + x)
    graph.replay()
    pool = graph.pool()
    state = torch._C._cuda_getCheckpointState(0, pool)
    address, nbytes = y.untyped_storage().data_ptr(), y.untyped_storage().nbytes()
    assert torch._C._has_Standard_Deleter(y.untyped_storage()._cdata)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {address})
    del y
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, set())
    storage = torch._C._construct_storage_from_data_pointer(address, x.device, nbytes)
    assert not torch._C._has_Standard_Deleter(storage._cdata)
    layout = {"dtype": torch.float32, "size": (MB,), "stride": (1,), "storage_offset": 0}
    again = torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(layout, storage)
    assert again.is_cuda
    assert again.data_ptr() == address
    x.fill_(4)
    graph.replay()
    assert again.mean().item() == 5
    torch._C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {address})
    full = torch._C._cuda_getCheckpointState(0, pool)
    torch._C._cuda_setCheckpointPoolState(0, full, [], [])
    del again, storage
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, set())
    empty = torch._C._cuda_getCheckpointState(0, pool)
    torch._C._cuda_setCheckpointPoolState(0, full, [], [])
    with pytest.raises(RuntimeError, match="must be passed to set checkpoint"):
        torch._C._cuda_setCheckpointPoolState(0, empty, [], [])


def test_a_simulation_leaves_torch_as_it_was() -> None:
    before = (torch.cuda.CUDAGraph, torch.cuda.graphs.CUDAGraph, torch._C._CUDAGraph)
    stream = torch.cuda.graph.default_capture_stream
    with simulate("h100"):
        captured(lambda: torch.ones(1, device="cuda"))
        assert torch.cuda.CUDAGraph.__doc__ == before[0].__doc__
        assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is not before[0]
    assert (torch.cuda.CUDAGraph, torch.cuda.graphs.CUDAGraph, torch._C._CUDAGraph) == before
    assert torch.cuda.graph.default_capture_stream is stream
