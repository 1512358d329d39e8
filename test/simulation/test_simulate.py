"""Unmodified CUDA code under simulation: where tensors live, and what torch.cuda answers."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import os
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.python_process import run_python
from torch.nn import functional

from pytorch_memlab import simulate
from pytorch_memlab.errors import (
    HostMemoryError,
    UnknownGPUError,
    UnsupportedCUDACallError,
    UsageError,
)

CUDA0, CUDA1, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


@pytest.fixture
def gpus() -> Any:
    with simulate("24GiB", count=2) as machine:
        yield machine


MAKERS = {
    "empty": lambda device: torch.empty(3, device=device),
    "zeros": lambda device: torch.zeros(3, device=device),
    "full": lambda device: torch.full((3,), 1.0, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 3, device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "randn": lambda device: torch.randn(3, device=device, requires_grad=True),
    "randperm": lambda device: torch.randperm(3, device=device),
    "tensor": lambda device: torch.tensor([1.0, 2.0], device=device),
    "as_tensor": lambda device: torch.as_tensor([1.0, 2.0], device=device),
    "asarray": lambda device: torch.asarray([1.0, 2.0], device=device),
    "scalar_tensor": lambda device: torch.scalar_tensor(2.0, device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.zeros(3), device=device),
    "new_zeros": lambda device: torch.zeros(3).new_zeros(3, device=device),
    "new_tensor": lambda device: torch.zeros(3).new_tensor([1, 2], device=device),
    "to": lambda device: torch.zeros(3).to(device),
    "to with dtype": lambda device: torch.zeros(3).to(device, torch.float16),
    "to other": lambda device: torch.zeros(3).to(torch.zeros(1, device=device)),
    "sparse": lambda device: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device=device),
    "linear": lambda device: torch.nn.Linear(3, 3, device=device).weight,
    "module to": lambda device: torch.nn.Linear(3, 3).to(device).weight,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", CUDA0), ("cuda:1", CUDA1), (torch.device("cuda", 1), CUDA1), ("cpu", CPU)],
)
def test_tensors_are_made_where_the_program_says(
    gpus: Any, make: Any, device: Any, expected: torch.device
) -> None:
    tensor = make(device)
    assert tensor.device == expected
    assert tensor.is_cuda == (expected.type == "cuda")
    assert tensor.get_device() == (-1 if expected == CPU else expected.index)
    index = expected.index or 0
    held = torch.cuda.memory_allocated(index)
    assert (held > 0) == (expected.type == "cuda")
    del tensor
    assert torch.cuda.memory_allocated(index) == 0


def test_results_live_where_their_inputs_live(gpus: Any) -> None:
    a = torch.randn(4, 4, device="cuda:1")
    results = [
        a + 1, a @ a, a.sum(), a.max(dim=0).values, a.view(-1), a[1], a.t(), a.detach(), a.data,
        a.clone(), a.new_ones(2), torch.zeros_like(a), torch.cat([a, a]), torch.stack([a, a]),
        a.to(torch.float64), a.to_sparse(), a.to_sparse().coalesce().values(), a > 0,
        functional.one_hot(a.argmax(dim=0)), a.unique(), a.nonzero(), torch.where(a > 0, a, 0.0),
        torch.einsum("ij,jk->ik", a, a), a[a > 0], a.sort().indices, torch.linalg.qr(a).R,
        functional.dropout(a, 0.5), functional.softmax(a, 0), a.contiguous(), a.expand(2, 4, 4),
    ]  # fmt: skip
    assert [result.device for result in results] == [CUDA1] * len(results)
    assert [a.cpu().device, a.to("cpu").device] == [CPU, CPU]


def test_moves_keep_or_change_identity_as_cuda_does(gpus: Any) -> None:
    host = torch.zeros(3)
    here = host.cuda()
    assert here.cuda() is here
    assert here.to("cuda") is here
    assert here.to("cuda", copy=True) is not here
    assert host.cpu() is host
    assert here.to("cuda:1").device == CUDA1
    assert here.to(dtype=torch.float32) is here
    linear = torch.nn.Linear(2, 2)
    weight = linear.weight
    assert linear.cuda().weight is weight
    assert weight.device == CUDA0


def test_bytes_are_those_of_the_allocator(gpus: Any) -> None:
    kept = torch.nn.Linear(1024, 1024).cuda()
    assert torch.cuda.memory_allocated() == 4 * 2**20 + 4096
    assert torch.cuda.memory_reserved() == 20 * 2**20 + 2 * 2**20
    view = kept.weight.view(-1)
    assert torch.cuda.memory_allocated() == 4 * 2**20 + 4096
    kept.weight.data = torch.zeros(1, device="cuda")
    assert torch.cuda.memory_allocated() == 4 * 2**20 + 4096 + 512
    del view
    assert torch.cuda.memory_allocated() == 4096 + 512
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 2 * 2**20


def test_storages_that_change_size_are_followed(gpus: Any) -> None:
    tensor = torch.zeros(1024, device="cuda")
    tensor.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 0
    tensor.untyped_storage().resize_(8192)
    assert torch.cuda.memory_allocated() == 8192
    tensor.resize_(4096)
    assert torch.cuda.memory_allocated() == 16384
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(1024, device="cuda"), 1, out=out)
    assert torch.cuda.memory_allocated() == 16384 + 4096


def test_gradients_travel_back_to_where_the_leaf_is(gpus: Any) -> None:
    leaf = torch.ones(3, requires_grad=True)
    (leaf.cuda().to("cuda:1", torch.float64) * 2).sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad.device, leaf.grad.dtype) == (CPU, torch.float32)
    assert leaf.grad.tolist() == [2.0] * 3


def test_backward_hooks_and_custom_functions(gpus: Any) -> None:
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen.extend([x.device, grad.device, torch.zeros(1).device, torch.zeros_like(x).device])
            return grad * 2

    leaf = torch.ones(3, device="cuda", requires_grad=True)
    out = Double.apply(leaf)
    out.register_hook(lambda grad: seen.append(grad.device))
    (out.max() + out.sum()).backward()
    assert seen == [CUDA0, CUDA0, CUDA0, CPU, CUDA0]
    assert leaf.grad is not None
    assert leaf.grad.device == CUDA0
    (second,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
    assert second.device == CUDA0
    assert torch.autograd.grad(second.sum(), leaf)[0].tolist() == [6.0] * 3


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "LBFGS"])
def test_training_equals_training_on_the_host(name: str) -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU()]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).to(device)
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01)
        x, y = torch.randn(6, 8).to(device), torch.randint(0, 4, (6,)).to(device)
        losses = []

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            losses.append(loss.item())
            return loss

        for _ in range(3):
            optimizer.step(step)
        places = {
            value.device.type
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.dim()
        }
        assert places <= {device}
        assert all(p.grad is not None and p.grad.device.type == device for p in net.parameters())
        return losses

    on_host = train("cpu")
    with simulate("24GiB"):
        on_gpu = train("cuda")
        assert torch.cuda.max_memory_allocated() > 0
    assert on_gpu == pytest.approx(on_host, rel=1e-5)


def test_adamw_keeps_three_times_the_parameters(gpus: Any) -> None:
    net = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    workspaces = 2 * 8519680  # of cuBLAS: one for this thread, one for the backward pass
    assert torch.cuda.memory_allocated() == 3 * 4 * 2**20 + workspaces
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 3 * 4 * 2**20


def test_models_of_torch_run(gpus: Any) -> None:
    x = torch.randn(3, 2, 16, device="cuda")
    layer = torch.nn.TransformerEncoderLayer(16, 4).cuda()
    lstm = torch.nn.LSTM(16, 8).cuda()
    convolution = torch.nn.Conv2d(3, 4, 3).cuda()
    norm = torch.nn.BatchNorm2d(4).cuda()
    embedding = torch.nn.Embedding(10, 4, sparse=True).cuda()
    outputs = [
        layer(x),
        lstm(x)[0],
        norm(convolution(torch.randn(2, 3, 8, 8, device="cuda"))),
        embedding(torch.tensor([1, 2], device="cuda")),
    ]
    sum(output.sum() for output in outputs).backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.is_sparse
    assert embedding.weight.grad.device == CUDA0
    assert [output.device for output in outputs] == [CUDA0] * 4


def test_composite_ops_may_move_arguments_of_the_host(gpus: Any) -> None:
    scores = torch.randn(5, 2, 4, device="cuda", requires_grad=True)
    labels = torch.randint(1, 4, (2, 3), device="cuda")
    lengths = torch.tensor([5, 5]), torch.tensor([3, 2])
    loss = functional.ctc_loss(scores.log_softmax(2), labels, *lengths)
    loss.backward()
    assert loss.device == CUDA0
    assert scores.grad is not None
    assert scores.grad.device == CUDA0


def test_flattened_rnn_weights_share_one_storage(gpus: Any) -> None:
    lstm = torch.nn.LSTM(64, 64).cuda()
    storages = {weight.untyped_storage().data_ptr() for weight in lstm.parameters()}
    assert len(storages) == 1
    assert torch.cuda.memory_allocated() == (2 * 4 * 64 * 64 + 2 * 4 * 64) * 4


def test_saving_loading_and_copying_keep_the_device(gpus: Any) -> None:
    def saved(map_location: Any) -> torch.device:
        buffer = io.BytesIO()
        torch.save({"w": torch.ones(3, device="cuda:1")}, buffer)
        buffer.seek(0)
        device: torch.device = torch.load(buffer, map_location=map_location)["w"].device
        return device

    assert [saved(None), saved("cuda"), saved("cpu"), saved({"cuda:1": "cuda:0"})] == [
        CUDA1, CUDA0, CPU, CUDA0
    ]  # fmt: skip
    net = torch.nn.Linear(2, 2).cuda()
    assert copy.deepcopy(net).weight.device == CUDA0
    assert pickle.loads(pickle.dumps(net.weight)).device == CUDA0
    other = torch.nn.Linear(2, 2).cuda()
    other.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    assert torch.equal(other.weight, net.weight)
    assert {value.device for value in net.state_dict().values()} == {CUDA0}


def test_a_bare_index_is_a_gpu(gpus: Any) -> None:
    assert torch.device(1) == CUDA1
    assert isinstance(torch.device(1), torch.device)
    assert isinstance(torch.zeros(1, device=torch.device(1)).device, torch.device)
    assert torch.device("cpu") == CPU
    assert torch.device(type="cuda", index=0) == CUDA0


def test_default_devices(gpus: Any) -> None:
    with torch.device("cuda:1"):
        weight = torch.nn.Linear(1, 1).weight
        inside = [torch.zeros(1), torch.tensor([1.0]), torch.as_tensor([1]), weight]
    assert [tensor.device for tensor in inside] == [CUDA1] * 4
    torch.set_default_device("cuda")
    assert [torch.zeros(1).device, torch.tensor([1.0]).device] == [CUDA0, CUDA0]
    assert torch.get_default_device() == CUDA0
    # Left on: leaving the simulation takes it off, which a fixture asserts.


def test_threads_are_simulated_too(gpus: Any) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda") * 2))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2) as pool:
        seen.append(pool.submit(lambda: torch.ones(2).cuda(1)).result())
    assert [tensor.device for tensor in seen] == [CUDA0, CUDA1]


def test_each_thread_has_its_own_current_device(gpus: Any) -> None:
    torch.cuda.set_device(1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.cuda.current_device).result() == 0
    assert torch.cuda.current_device() == 1
    with torch.cuda.device(0):
        assert torch.empty(1, device="cuda").device == CUDA0
    assert torch.empty(1, device="cuda").device == CUDA1


def test_streams_and_events(gpus: Any) -> None:
    side = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        first = torch.empty(100, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
    torch.cuda.current_stream().wait_stream(side)
    first.record_stream(torch.cuda.current_stream())
    address = torch.cuda.memory_snapshot()[0]["address"]
    del first
    assert torch.cuda.memory_reserved() == 2 * 2**20
    second = torch.empty(100, device="cuda")
    # A free block of one stream serves no other.
    assert torch.cuda.memory_reserved() == 4 * 2**20
    assert {one["address"] for one in torch.cuda.memory_snapshot()} > {address}
    del second
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_what_torch_cuda_answers() -> None:
    with simulate("h100", count=2):
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (2, 0)
        assert torch.cuda.get_device_name(1) == "NVIDIA H100 80GB HBM3"
        assert torch.cuda.get_device_capability() == (9, 0)
        properties = torch.cuda.get_device_properties("cuda:0")
        assert properties.multi_processor_count == 132
        free, total = torch.cuda.mem_get_info()
        assert (free, total) == (properties.total_memory - 601 * 2**20, properties.total_memory)
        kept = torch.zeros(2**20, device="cuda")
        assert torch.cuda.mem_get_info()[0] == free - 20 * 2**20
        assert torch.cuda.memory_stats()["allocation.large_pool.current"] == 1
        allocated_row = "| Allocated memory      |   4096 KiB |   4096 KiB |   4096 KiB |      0 B"
        assert allocated_row in torch.cuda.memory_summary()
        assert torch.cuda.memory_snapshot()[0]["blocks"][0]["size"] == 4 * 2**20
        assert torch.cuda.max_memory_reserved() == 20 * 2**20
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
        torch.cuda.synchronize()
        torch.cuda.manual_seed_all(0)
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        generator = torch.Generator("cuda").manual_seed(3)
        assert generator.device == CUDA0
        assert isinstance(torch.default_generator, torch.Generator)
        assert torch.rand(2, device="cuda", generator=generator).device == CUDA0
        assert torch.zeros(3, pin_memory=True).is_pinned()
        assert torch.zeros(3).pin_memory().is_pinned()
        assert not torch.zeros(3).is_pinned()
        with pytest.raises(AssertionError, match="Invalid device id"):
            torch.cuda.get_device_properties(2)
        del kept


def test_mixing_devices_fails_as_it_would_on_the_card(gpus: Any) -> None:
    here = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        here + torch.ones(3)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1!"):
        torch.cat([here, torch.ones(3, device="cuda:1")])
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        here.numpy()
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        functional.multi_head_attention_forward(
            *[torch.ones(2, 1, 4)] * 3, 4, 2, *[torch.ones(12, 4, device="cuda")], None, None, None,
            False, 0.0, torch.ones(4, 4, device="cuda"), None,
        )  # fmt: skip
    assert (here + torch.tensor(1.0)).device == CUDA0
    assert here[torch.tensor([0])].device == CUDA0
    here.copy_(torch.zeros(3))
    assert here.tolist() == [0.0] * 3


def test_legacy_types(gpus: Any) -> None:
    made = torch.cuda.FloatTensor(2, 3)
    assert (made.shape, made.dtype, made.device) == ((2, 3), torch.float32, CUDA0)
    assert isinstance(made, torch.cuda.FloatTensor)
    assert not isinstance(made.cpu(), torch.cuda.FloatTensor)
    assert torch.zeros(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]


def test_what_is_not_covered_names_itself(gpus: Any) -> None:
    with pytest.raises(UnsupportedCUDACallError, match=r"cuda\.current_blas_handle is not covered"):
        torch.cuda.current_blas_handle()
    with pytest.raises(UnsupportedCUDACallError, match=r"cuda\.ExternalStream is not covered"):
        torch.cuda.ExternalStream(8)
    assert torch.cuda.ExternalStream | None
    assert not isinstance(3, torch.cuda.ExternalStream)


def test_what_is_harmless_is_left_alone(gpus: Any) -> None:
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch.cuda.nvtx.range_push("range")
    torch.cuda.nvtx.range_pop()
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert torch.Stream("cuda:1").device == CUDA1
    shared = torch.ones(2, device="cuda")
    assert torch.from_dlpack(shared).data_ptr() == shared.data_ptr()
    assert torch.from_dlpack(shared).device == CUDA0


def test_out_of_memory_in_torchs_own_words() -> None:
    with simulate("1GiB"):
        kept = torch.empty(600 * 2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(500 * 2**20, dtype=torch.uint8, device="cuda")
        assert str(caught.value) == (
            "CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 424.00 MiB is free. Including non-PyTorch memory, this process "
            "has 600.00 MiB memory in use. Of the allocated memory 600.00 MiB is allocated by "
            "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but "
            "unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
            "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
            "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )
        del kept
        assert torch.empty(500 * 2**20, dtype=torch.uint8, device="cuda").numel()


def test_more_than_the_host_holds() -> None:
    with simulate("8GiB"), pytest.raises(torch.OutOfMemoryError, match=r"allocate 8192\.00 GiB"):
        torch.empty(2**43, dtype=torch.uint8, device="cuda")
    with simulate("100TiB"), pytest.raises(HostMemoryError, match="this machine cannot"):
        torch.empty(2**43, dtype=torch.uint8, device="cuda")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with simulate("24GiB"):
        kept = torch.zeros(2**20, device="cuda")
        assert torch.cuda.memory_reserved() == 20 * 2**20
        assert torch.cuda.memory_stats()["segment.all.current"] == 0
        del kept


def test_it_decorates_functions() -> None:
    @simulate("16GiB")
    def work() -> int:
        return torch.cuda.get_device_properties(0).total_memory

    assert [work(), work()] == [16 * 2**30] * 2
    assert not torch.cuda.is_available()


def test_it_decorates_coroutines_and_generators_until_they_end() -> None:
    @simulate("16GiB")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return torch.empty(128, device="cuda").nbytes

    @simulate("16GiB")
    def generator() -> Iterator[int]:
        for size in (128, 256):
            yield torch.empty(size, device="cuda").nbytes

    @simulate("16GiB")
    async def asynchronous() -> AsyncIterator[int]:
        for size in (128, 256):
            yield torch.empty(size, device="cuda").nbytes

    async def collect() -> list[int]:
        return [size async for size in asynchronous()]

    assert asyncio.run(coroutine()) == 512
    assert list(generator()) == asyncio.run(collect()) == [512, 1024]
    assert not torch.cuda.is_available()


def test_a_simulation_inside_another_is_a_machine_of_its_own() -> None:
    with simulate("24GiB"):
        outer = torch.ones(1024, device="cuda")
        with simulate("8GiB", count=2):
            assert torch.cuda.device_count() == 2
            assert outer.device == CPU
            inner = torch.zeros(256, device="cuda:1")
            assert (outer + inner.cpu().sum()).device == CPU
            assert torch.cuda.memory_allocated(1) == 1024
        assert torch.cuda.device_count() == 1
        assert outer.device == (outer * 2).device == CUDA0
        assert torch.cuda.memory_allocated() == 4096


def test_it_ends_also_after_an_error() -> None:
    def fails() -> None:
        with simulate("24GiB"):
            made.append(torch.ones(2, device="cuda"))
            raise ZeroDivisionError

    made: list[torch.Tensor] = []
    with pytest.raises(ZeroDivisionError):
        fails()
    (kept,) = made
    assert kept.device == CPU
    assert (kept + torch.ones(2)).tolist() == [2.0, 2.0]


def test_misuse_is_one_clear_line() -> None:
    with pytest.raises(UnknownGPUError, match="h100"):
        simulate("h10")
    with pytest.raises(UsageError, match="count must be a positive int, not 0"):
        simulate("h100", count=0)
    with pytest.raises(UsageError, match=r"^count must be 128 or less, as torch keeps the index"):
        simulate("h100", count=999_999_999)
    assert torch.device("cuda", 127).index == 127
    assert torch.device("cuda", 128).index == -128
    once = simulate("24GiB")
    with once, pytest.raises(UsageError, match="this simulation is on already"):
        once.__enter__()
    with simulate("24GiB"), pytest.raises(RuntimeError, match="invalid device ordinal: cuda:5"):
        torch.zeros(1, device="cuda:5")


def test_a_backward_of_the_host_stays_there_after_one_of_a_gpu():
    with simulate("24GiB"):
        (torch.ones(3, device="cuda", requires_grad=True) * 2).sum().backward()
        leaf = torch.randn(3, requires_grad=True)
        converted = leaf.double()
        converted.backward(torch.ones_like(converted))
        assert leaf.grad.device.type == "cpu"
        assert leaf.grad.tolist() == [1.0, 1.0, 1.0]


PESTERED = """
import gc, os, signal, threading, time
import torch
from pytorch_memlab import simulate

def quietly(work, *args, **options):
    while True:
        try:
            return work(*args, **options)
        except KeyboardInterrupt:
            pass

begin, stop = threading.Event(), threading.Event()

def pester():
    begin.wait()  # a thread whose start is interrupted cannot be started again
    while not stop.wait(0.001):
        os.kill(os.getpid(), signal.SIGINT)

with simulate("24GiB"):
    threading.Thread(target=pester).start()
    quietly(begin.set)
    interrupted, end = 0, time.time() + 60
    while interrupted < 100 and time.time() < end:
        try:
            for _ in range(200):
                torch.empty(10, device="cuda")
        except KeyboardInterrupt:
            interrupted += 1
    quietly(stop.set)
    quietly(time.sleep, 0.05)
    quietly(torch.empty, 1, device="cuda")  # raises those that came while a tensor died
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    print(interrupted == 100, active == torch.cuda.memory_allocated(), gc.isenabled())
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_leaves_the_allocator_whole_and_free():
    ended = run_python(["-c", PESTERED])
    assert ended.stdout.split() == ["True"] * 4


# Simulations that are not entered, or not kept


def test_a_simulation_that_is_never_entered_warns_where_it_was_made() -> None:
    with pytest.warns(UserWarning, match=r"simulate\('h100'\) was never entered") as caught:
        simulate("h100")

    assert [warning.filename for warning in caught] == [__file__]


def test_simulations_that_are_used_or_mistaken_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @simulate("t4")
        def where() -> str:
            return torch.cuda.get_device_name()

        assert where() == "Tesla T4"
        with simulate("t4"):
            pass
        with pytest.raises(UsageError):
            simulate("t4", count=0)
        gc.collect()


ENDS = """\
import atexit, gc, sys, torch
from pytorch_memlab import simulate

{begin}
gc.collect()
kept = torch.ones(3, device="cuda")
atexit.register(lambda: print(kept.device, torch.cuda.memory_allocated()))
if {shapes}:
    torch.save(torch.empty(2**20, 2**20, device="cuda"), sys.argv[1])
unused = simulate("a100")
"""


@pytest.mark.parametrize("shapes", [False, True])
@pytest.mark.parametrize(
    "begin", ['simulate("8TiB", {}).__enter__()', 's = simulate("8TiB", {}); s.__enter__()']
)
def test_a_simulation_that_nobody_keeps_lasts_until_the_process_ends(
    begin: str, shapes: bool, tmp_path: Path
) -> None:
    text = ENDS.format(begin=begin.format(f"compute={not shapes}"), shapes=shapes)
    (tmp_path / "temporary").mkdir()
    done = run_python(
        ["-c", text, tmp_path / "new"],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )

    assert done.stdout == "cuda:0 512\n"
    assert done.stderr.count("\n") == shapes
    assert done.returncode == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]


def test_tensors_and_their_subclasses_are_made_as_before_afterwards() -> None:
    class Plain(torch.Tensor):
        pass

    with simulate("1GiB"):
        assert type(Plain([1.0])) is Plain
    assert "__new__" not in vars(torch.Tensor)
    assert type(Plain([1.0])) is Plain
    assert (type(torch.Tensor(2, 3)), torch.Tensor(2, 3).shape) == (torch.Tensor, (2, 3))
