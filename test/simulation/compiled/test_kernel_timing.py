"""Triton kernels of compiled code are timed at their first launch, which takes memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch.cuda._gpu_trace as gpu_trace
from torch._dynamo.exc import TorchRuntimeError
from torch._inductor import config
from torch._inductor.runtime import benchmarking, triton_heuristics
from torch._inductor.utils import fresh_cache

from pytorch_memlab import explain_oom, simulate
from pytorch_memlab.errors import EstimatedMemoryError, UnmodelledOpError
from pytorch_memlab.simulation.compiled import kernel_timing
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

MIB = 2**20
FLUSHED = 40 * MIB  # bytes of an A100's second cache, which each timing writes over
SIZE = 4 * MIB  # of the tensors here


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def tensor() -> torch.Tensor:
    return torch.ones(1024, 1024, device="cuda")


def taken(call: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """The most bytes that a call adds to what is there, and how often it allocates."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    result = call(*args)
    after = torch.cuda.memory_stats()
    del result
    most = after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"]
    return most, after["allocation.all.allocated"] - before["allocation.all.allocated"]


@pytest.mark.parametrize("compute", [True, False])
def test_a_kernel_is_timed_at_its_first_launch_once_for_each_configuration(compute: bool) -> None:
    with simulate("a100", compute=compute):
        x, step = tensor(), torch.compile(wave)
        assert taken(step, x) == (SIZE + FLUSHED, 1 + 2)
        assert taken(step, x) == (SIZE, 1)
        # Another shape has another kernel.
        assert taken(step, torch.ones(2048, 1024, device="cuda")) == (2 * SIZE + FLUSHED, 1 + 2)


def test_the_size_of_the_buffer_is_that_of_the_second_cache() -> None:
    with simulate("h100", compute=False):
        assert taken(torch.compile(wave), tensor()) == (SIZE + 50 * MIB, 3)


def test_tritons_own_benchmark_takes_its_own_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "benchmarker", benchmarking.TritonBenchmarker())
    with simulate("a100", compute=False):
        assert taken(torch.compile(wave), tensor()) == (SIZE + 256 * MIB, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"triton.autotune_pointwise": False},
        {"triton.autotune_pointwise": False, "deterministic": True},
    ],
)
def test_a_kernel_with_one_configuration_is_not_timed(options: dict[str, Any]) -> None:
    with config.patch(options), simulate("a100", compute=False):
        assert taken(torch.compile(wave), tensor()) == (SIZE, 1)


def test_a_transposition_has_one_configuration() -> None:
    with simulate("a100", compute=False) as machine:
        step = torch.compile(lambda x: x + x.t())
        assert taken(step, tensor()) == (SIZE, 1)
        assert not machine.approximations[0].estimated


def test_pointwise_kernels_are_timed_in_deterministic_mode_too() -> None:
    with config.patch(deterministic=True), simulate("a100", compute=False):
        assert taken(torch.compile(wave), tensor()) == (SIZE + FLUSHED, 3)


def test_coordinate_descent_times_a_kernel_with_one_configuration() -> None:
    options = {"triton.autotune_pointwise": False, "coordinate_descent_tuning": True}
    with config.patch(options), simulate("a100", compute=False) as machine:
        most, allocations = taken(torch.compile(wave), tensor())
        assert most == SIZE + FLUSHED
        assert allocations > 2
        assert not machine.approximations[0].uncounted


@pytest.mark.skipif(RELEASE < (2, 13), reason="older releases have one block for all parts")
def test_a_kernel_of_several_parts_times_the_blocks_of_each() -> None:
    """The base, one more block size for each part, and one more number of warps."""

    def step(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() + 1, other.exp() * 2

    options = {"combo_kernels": True, "combo_kernel_per_subkernel_blocks": True}
    with config.patch(options), simulate("a100", compute=False) as machine:
        other = torch.ones(77, 88, 3, device="cuda")
        most, allocations = taken(torch.compile(step), tensor(), other)
        assert most == SIZE + -(-other.nbytes // 512) * 512 + FLUSHED
        assert allocations == 2 + 1 + 2 + 1
        assert not machine.approximations[0].uncounted


def test_one_kernel_of_two_functions_is_timed_once() -> None:
    with simulate("a100", compute=False):
        assert taken(torch.compile(wave), tensor()) == (SIZE + FLUSHED, 3)
        again = torch.compile(lambda x: x.sin() + 1)
        assert taken(again, tensor()) == (SIZE, 1)
        with fresh_cache():  # an empty disk
            torch.compiler.reset()
            assert taken(torch.compile(wave), tensor()) == (SIZE + FLUSHED, 3)
    with simulate("a100", compute=False):  # another process
        assert taken(torch.compile(wave), tensor()) == (SIZE + FLUSHED, 3)


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gate is written over the product."""
    return (x @ weight).sigmoid()


@pytest.mark.parametrize("compute", [True, False])
def test_what_a_kernel_overwrites_is_copied_for_each_launch(compute: bool) -> None:
    with simulate("a100", compute=compute):
        x, weight = tensor(), tensor().requires_grad_()
        torch.mm(x, x)  # takes cuBLAS's workspace
        step = torch.compile(gated)
        assert taken(step, x, weight) == (2 * SIZE + FLUSHED, 1 + 2 * (2 + 1))
        assert taken(step, x, weight) == (SIZE, 1)


def pinned() -> int:
    """Bytes of the host that were pinned so far."""
    return int(torch.cuda.host_memory_stats()["allocated_bytes.allocated"])


@pytest.mark.parametrize("compute", [True, False])
def test_without_gradients_a_copy_that_would_raise_the_peak_is_on_the_host(compute: bool) -> None:
    with simulate("a100", compute=compute), torch.no_grad():
        x, weight = tensor(), tensor()
        torch.mm(x, x)
        before = pinned()
        # Not for the second configuration: the buffer of the first one has raised the peak.
        most = 2 * SIZE + FLUSHED
        assert taken(torch.compile(gated), x, weight) == (most, 1 + (0 + 1) + (2 + 1))
        assert pinned() - before == SIZE

        other = torch.compile(lambda x, weight: (x @ weight).tanh())

        def below_an_earlier_peak() -> Any:
            torch.empty(2 * SIZE, dtype=torch.uint8, device="cuda")
            return other(x, weight)

        assert taken(below_an_earlier_peak) == (most, 1 + 1 + 2 * (2 + 1))
        assert pinned() - before == SIZE


def test_values_that_a_kernel_overwrites_are_changed_once() -> None:
    def doubled(x: torch.Tensor) -> None:
        x.mul_(2)

    for graph in (nullcontext, torch.no_grad):
        with simulate("a100"), graph():
            x = tensor()
            torch.compile(doubled)(x)
            assert x.cpu().unique().tolist() == [2.0]


def test_random_numbers_are_those_of_a_program_that_times_nothing() -> None:
    def numbers(autotune: bool) -> torch.Tensor:
        with config.patch({"triton.autotune_pointwise": autotune}), simulate("a100"):
            torch.manual_seed(0)
            torch.compile(lambda x: x + torch.rand_like(x))(tensor())
            return torch.rand(8, device="cuda").cpu()

    assert torch.equal(numbers(True), numbers(False))


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def test_a_reduction_that_may_need_many_registers_is_an_estimate() -> None:
    """8192 blocks are more than run at once if each thread has the most registers."""
    nbytes = 8192 * 4
    with simulate("a100", compute=False) as machine:
        x = torch.ones(8192, 32000, device="cuda")
        assert taken(torch.compile(wide), x) == (nbytes + FLUSHED, 1 + 2)
        (named,) = machine.approximations[0].estimated.items()
        assert named[0] == "timing of Triton kernels"
        assert (named[1].calls, named[1].nbytes) == (2, 2 * FLUSHED)
        assert not machine.approximations[0].uncounted


def test_a_reduction_whose_blocks_all_run_at_once_has_one_configuration() -> None:
    with simulate("a100", compute=False, strict="estimates"):
        x = torch.ones(64, 4096, device="cuda")
        assert taken(torch.compile(wide), x) == (512, 1)


def test_a_strict_run_stops_at_a_reduction_that_may_be_timed() -> None:
    with simulate("a100", compute=False, strict="estimates"):
        x = torch.ones(8192, 32000, device="cuda")
        with pytest.raises(EstimatedMemoryError, match="may be timed, which takes 41943040 bytes"):
            torch.compile(wide)(x)
    with simulate("a100", compute=False, strict=True):
        torch.compile(wide)(torch.ones(8192, 32000, device="cuda"))


def test_what_is_taken_is_on_the_line_of_the_kernel_and_has_its_name() -> None:
    with simulate("a100", compute=False):
        x = tensor()
        torch.cuda.memory._record_memory_history()
        torch.compile(wave)(x)
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    timed = [event for event in trace if event["action"] == "alloc" and event["size"] == FLUSHED]
    assert len(timed) == 2
    line = wave.__code__.co_firstlineno + 1
    for event in timed:
        frames = [(frame["filename"], frame["line"], frame["name"]) for frame in event["frames"]]
        place = frames.index((__file__, line, "wave"))
        assert frames[place - 1][2] == "timing of triton_poi_fused_add_sin_0"


def test_what_does_not_fit_ends_the_program_and_is_tried_at_the_next_launch_again() -> None:
    with simulate("a100", compute=False):
        x, step = tensor(), torch.compile(wave)
        free = torch.cuda.mem_get_info()[0]
        filler = torch.empty(free - FLUSHED, dtype=torch.uint8, device="cuda")
        for _ in range(2):
            with (
                pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 40\.00 MiB"),
                explain_oom(no_try=True) as explained,
            ):
                step(x)
            line = wave.__code__.co_firstlineno + 1
            heading = (explained.report or "").splitlines()[0]
            assert heading == f"Out of memory on cuda:0 at test_kernel_timing.py:{line}, in wave"
        del filler
        assert taken(step, x) == (SIZE + FLUSHED, 3)


def test_the_buffer_is_given_back_when_the_gpu_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    names = {
        "MemoryAllocation": "taken",
        "MemoryDeallocation": "given back",
        "DeviceSynchronization": "waited",
    }
    for name, word in names.items():
        registry = getattr(gpu_trace, f"{name}Callbacks")
        monkeypatch.setattr(registry, "callback_list", [lambda *_, word=word: found.append(word)])
    with simulate("a100", compute=False) as machine:
        torch._C._activate_gpu_trace()
        benchmarker = kernel_timing._Benchmarker(machine)
        with benchmarker.estimating(is_estimate=False):
            assert benchmarker.benchmark(lambda: found.append("launched")) == 1.0
    assert found == ["waited", "launched", "taken", "launched", "waited", "given back"]


def test_kernels_of_graphs_are_timed_in_the_pool_of_the_first_run() -> None:
    with simulate("a100", compute=False):
        x = tensor()
        step = torch.compile(wave, mode="reduce-overhead")
        for _ in range(3):
            step(x)
        pools = {
            tuple(segment["segment_pool_id"]): segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["total_size"] == FLUSHED
        }
        assert len(pools) == 1
        assert (0, 0) not in pools


@pytest.mark.new_process("torch.compile keeps its frame evaluator once a compiler has failed")
def test_a_kernel_cannot_be_timed_while_a_graph_is_captured() -> None:
    with simulate("a100", compute=False):
        x, step = tensor(), torch.compile(wave)
        # From 2.14 on a build for CUDA says so before it compiles.
        errors = torch.AcceleratorError, TorchRuntimeError
        refused = pytest.raises(errors, match=r"when stream is capturing|during CUDA graph capture")
        ended = suppress(torch.AcceleratorError)
        with ended, torch.cuda.graph(torch.cuda.CUDAGraph()), refused:
            step(x)
    with simulate("a100", compute=False):
        x, step = tensor(), torch.compile(wave)
        step(x)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert step(x).is_cuda


@pytest.mark.parametrize(
    ("mode", "configurations"), [("default", 1), ("max-autotune-no-cudagraphs", 4)]
)
def test_max_autotune_times_more_configurations(mode: str, configurations: int) -> None:
    """Of a kernel over many tensors, which has one configuration otherwise, and no neighbours."""

    def step(tensors: list[torch.Tensor]) -> Any:
        return torch._foreach_mul(tensors, 2.0)

    with simulate("a100", compute=False) as machine:
        tensors = [tensor() for _ in range(2)]
        timed = configurations if configurations > 1 else 0
        most, allocations = taken(torch.compile(step, mode=mode), tensors)
        assert (most, allocations) == (2 * SIZE + (FLUSHED if timed else 0), 2 + timed)
        assert not machine.approximations[0].uncounted


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with simulate("a100", compute=False):
        torch.compile(wave)(tensor())
    assert "TRITON_CACHE_DIR" not in os.environ


@pytest.mark.parametrize("name", ["run", "precompile"])
def test_a_release_without_these_names_marks_the_line(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(triton_heuristics.CachingAutotuner, name)
    with simulate("a100", compute=False) as machine:
        assert taken(torch.compile(wave), tensor()) == (SIZE, 1)
        (named,) = machine.approximations[0].uncounted
        assert named == ("timing of Triton kernels", "what it takes to time Triton kernels")
    with simulate("a100", compute=False, strict=True):
        x = tensor()
        with pytest.raises(UnmodelledOpError, match="what it takes to time Triton kernels"):
            torch.compile(wave)(x)
