"""torch.cuda without memory: events, properties, errors, visible GPUs, callbacks."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.cuda._gpu_trace as gpu_trace
from torch.cuda import is_initialized

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import AllocatorSettingsError, UnsupportedCUDACallError, UsageError

MB = 2**20


@pytest.fixture
def gpus() -> Any:
    with simulate("24GiB", count=2) as machine:
        yield machine


def test_is_initialized_that_was_imported_before_is_true_too(gpus: Any) -> None:
    torch.ones(1, device="cuda")
    assert is_initialized() is torch.cuda.is_initialized() is True


# Events and streams


def test_an_event_has_an_id_from_its_first_record_on(gpus: Any) -> None:
    event = torch.cuda.Event()
    assert (event.cuda_event, event.device, event.query()) == (0, None, True)
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    event.synchronize()
    torch.cuda.Stream(1).record_event(event)
    assert event.cuda_event == event.event_id == event._as_parameter_.value != 0
    assert event.device == torch.device("cuda:1")
    assert repr(event) == f"<torch.cuda.Event {event.cuda_event:#x}>"
    with pytest.raises(RuntimeError, match="Event device 1 does not match recording stream's"):
        event.record()
    with pytest.raises(UnsupportedCUDACallError, match=r"torch\.Event\.ipc_handle is not covered"):
        event.ipc_handle()
    with pytest.raises(UnsupportedCUDACallError, match=r"torch\.Event\.from_ipc_handle"):
        torch.cuda.Event.from_ipc_handle(torch.device("cuda"), b"")


def test_events_of_any_kind_of_device_name_it_first(gpus: Any) -> None:
    start, end = (torch.Event("cuda:1", enable_timing=True) for _ in range(2))
    assert start.device == torch.device("cuda:1")
    stream = torch.Stream("cuda:1")
    start.record(stream)
    stream.record_event(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert isinstance(stream.record_event(), torch.Event)
    assert isinstance(torch.cuda.Event(), torch.Event)
    assert not isinstance(start, torch.cuda.Event)
    assert repr(stream) == "torch.Stream device_type=cuda, device_index=1, stream_id=3"
    assert torch.Event().device == torch.device("cuda:0")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.Stream("cpu")


def test_a_stream_has_cudas_protocol(gpus: Any) -> None:
    stream = torch.cuda.Stream()
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    assert stream._as_parameter_.value == stream.cuda_stream
    assert repr(stream) == "<torch.cuda.Stream device=cuda:0 cuda_stream=0x3>"
    assert torch.cuda.default_stream().cuda_stream == 0


def test_a_gpu_that_is_not_there_has_no_current_stream(gpus: Any) -> None:
    assert torch.accelerator.current_stream(1).device_index == 1
    for answer in (torch.accelerator.current_stream, torch.cuda.current_stream):
        with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:5, of 2 simulated"):
            answer(5)
    torch.accelerator.set_stream(torch.Stream(1))
    assert torch.cuda.current_device() == 1
    assert torch.cuda.current_stream().stream_id == 3


# Properties, errors, the allocators


def test_properties_tell_gpus_apart(gpus: Any) -> None:
    first, second = (torch.cuda.get_device_properties(index) for index in (0, 1))
    assert isinstance(first.uuid, uuid.UUID)
    assert len(first.uuid.bytes) == 16
    assert first.uuid != second.uuid
    assert (first.pci_bus_id, second.pci_bus_id) == (0, 1)
    with simulate("24GiB"):
        assert torch.cuda.get_device_properties(0).uuid == first.uuid
    with pytest.raises(UnsupportedCUDACallError, match=r"get_device_properties\(\)\.clock_rate"):
        first.clock_rate  # noqa: B018
    with pytest.raises(AttributeError, match="'DeviceProperties' object has no attribute 'nmae'"):
        first.nmae  # noqa: B018


def test_shared_memory_follows_the_generation() -> None:
    expected = {"t4": 64, "v100-16gb": 96, "a100-80gb": 163, "h100": 227, "rtx 4090": 99}
    for name, kib in expected.items():
        with simulate(name):
            properties = torch.cuda.get_device_properties(0)
            assert properties.shared_memory_per_block_optin == kib * 1024, name
            assert properties.shared_memory_per_block == 48 * 1024


def test_results_of_the_runtime_are_errors_by_name(gpus: Any) -> None:
    torch.cuda.check_error(0)
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
    texts = {2: "out of memory", 600: "device not ready", 12345: "unrecognized error code"}
    for code, text in texts.items():
        with pytest.raises(torch.cuda.CudaError, match=rf"^{text} \({code}\)$"):
            torch.cuda.check_error(code)
    with pytest.raises(UnsupportedCUDACallError, match=r"cudart\(\)\.cudaStreamCreate"):
        torch.cuda.cudart().cudaStreamCreate(0)


def test_memory_that_is_registered_is_pinned_until_it_is_not(gpus: Any) -> None:
    runtime = torch.cuda.cudart()
    memory = torch.empty(100)
    assert runtime.cudaHostRegister(memory.data_ptr(), 200, 0) == 0
    pinned = [memory.is_pinned(), memory[10:].is_pinned(), memory.untyped_storage().is_pinned()]
    assert pinned == [True] * 3
    assert memory.pin_memory() is memory
    assert not torch.empty(100).is_pinned()
    assert not memory.cuda().is_pinned()
    assert runtime.cudaHostRegister(memory.data_ptr() + 40, 4, 0) == 712
    assert "already mapped" in runtime.cudaGetErrorString(712)
    assert runtime.cudaHostRegister(memory.data_ptr() + 200, 0, 0) == 1
    assert runtime.cudaHostUnregister(memory.data_ptr() + 40) == 713
    assert runtime.cudaHostUnregister(memory.data_ptr()) == 0
    assert not memory.is_pinned()


def test_memory_without_a_tensor(gpus: Any) -> None:
    address = torch.cuda.caching_allocator_alloc(5 * MB, device=1)
    assert torch.cuda.memory_allocated(1) == 5 * MB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(1) == 0
    assert list(gpus.gpus[1].log.requests) == [address, 5 * MB, 0, -address]
    side = torch.cuda.Stream()
    torch.cuda.caching_allocator_alloc(512, stream=side)
    assert {one["stream"] for one in torch.cuda.memory_snapshot()} == {0, side.cuda_stream}
    with pytest.raises(RuntimeError, match="invalid device pointer: 0x7b is on no simulated GPU"):
        torch.cuda.caching_allocator_delete(123)
    torch.cuda.caching_allocator_enable(True)
    with pytest.raises(UnsupportedCUDACallError, match=r"caching_allocator_enable\(False\)"):
        torch.cuda.caching_allocator_enable(False)


def test_the_size_of_cublas_workspaces_can_be_set(gpus: Any) -> None:
    matrix = torch.ones(8, 8, device="cuda")
    matrix @ matrix
    before = torch.cuda.memory_allocated()
    assert torch._C._cuda_getCublasWorkspaceSize() == 8_519_680
    torch._C._cuda_setCublasWorkspaceSize(4 * MB)
    assert torch.cuda.memory_allocated() == before
    matrix @ matrix
    assert torch.cuda.memory_allocated() == before - 8_519_680 + 4 * MB
    torch._C._cuda_clearCublasWorkspaces()
    torch._C._cuda_resetCublasWorkspaceSize()
    matrix @ matrix
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(ValueError, match="0 or more bytes, not -1"):
        torch._C._cuda_setCublasWorkspaceSize(-1)


@pytest.mark.parametrize("fraction", ["1.5", "-0.1", "half"])
def test_an_invalid_memory_fraction_is_refused_in_torchs_words(
    fraction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"per_process_memory_fraction:{fraction}")
    with pytest.raises(AllocatorSettingsError, match="per_process_memory_fraction is invalid"):
        simulate("24GiB").__enter__()


def test_settings_hold_that_the_program_puts_in_its_environment_before_it_uses_a_gpu(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64")
    first = torch.zeros(3_000_000).cuda()
    assert [one["is_expandable"] for one in torch.cuda.memory_snapshot()] == [True]
    assert torch.cuda.memory_stats()["max_split_size"] == 64 * 2**20
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    second = torch.zeros(30_000_000, device="cuda")
    assert [one["is_expandable"] for one in torch.cuda.memory_snapshot()] == [True]
    del first, second


def test_the_environment_does_not_change_settings_that_the_program_has_set(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._C._cuda_cudaCachingAllocator_set_allocator_settings("expandable_segments:True")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    first = torch.zeros(3_000_000, device="cuda")
    assert [one["is_expandable"] for one in torch.cuda.memory_snapshot()] == [True]
    del first


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_another_allocator_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "backend:cudaMallocAsync")
    with pytest.raises(
        AllocatorSettingsError, match="must be native, the one simulated, not 'cuda"
    ):
        simulate("24GiB").__enter__()


def test_sizes_of_a_packed_batch_stay_on_the_cpu(gpus: Any) -> None:
    network = torch.nn.RNN(4, 4).cuda()
    data, start = torch.ones(3, 4, device="cuda"), torch.zeros(1, 2, 4, device="cuda")
    sizes = torch.tensor([2, 1])
    options = (network._flat_weights, True, 1, 0.0, False, False)
    assert torch.rnn_tanh(data, sizes, start, *options)[0].shape == (3, 4)
    with pytest.raises(RuntimeError, match="must be on the CPU, not on cuda:0"):
        torch.rnn_tanh(data, sizes.cuda(), start, *options)


# Pinned memory


@pytest.mark.skipif(
    not hasattr(torch.cuda, "host_memory_stats"), reason="torch 2.6 has no such counters"
)
def test_pinned_blocks_are_powers_of_two_and_used_again(gpus: Any) -> None:
    def stats() -> list[int]:
        found = torch.cuda.host_memory_stats()
        keys = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        return [found[f"{key}.current"] for key in keys]

    first = torch.empty(3000, dtype=torch.uint8).pin_memory()
    second = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    third = torch.empty(100, device="cuda").to("cpu", non_blocking=True)
    assert third.is_pinned()
    assert not torch.empty(100, device="cuda").cpu().is_pinned()
    assert stats() == [3, 8192 + 512, 3, 8192 + 512]
    del first
    assert stats() == [3, 8192 + 512, 2, 4096 + 512]
    again = torch.empty(2049, dtype=torch.uint8).pin_memory()
    assert stats() == [3, 8192 + 512, 3, 8192 + 512]
    del again, second
    torch._C._host_emptyCache()
    assert stats() == [1, 512, 1, 512]
    found = torch.cuda.host_memory_stats()
    assert (found["num_host_alloc"], found["num_host_free"]) == (3, 2)
    assert found["active_bytes.peak"] == 8192 + 512
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    found = torch.cuda.host_memory_stats()
    assert (found["active_bytes.peak"], found["active_bytes.allocated"]) == (512, 0)
    assert found["num_host_alloc"] == 0


# CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("1,0", 2), ("1, 3", 1), ("2,-1,0", 0), ("1,1", 0), ("", 0), ("-1", 0), ("none", 0)],
)
def test_the_program_hides_gpus_before_it_uses_one(
    visible: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulate("24GiB", count=2):
        assert torch.cuda.device_count() == 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert torch.cuda.device_count() == count
        assert torch.cuda.is_available() is (count > 0)
        if count:
            torch.ones(1, device="cuda")
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
            assert torch.cuda.device_count() == count
        else:
            for call in (torch.cuda.current_device, torch.ones(1).cuda):
                with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
                    call()


def test_the_environment_may_hide_some_gpus_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with simulate("24GiB", count=4):
        assert torch.cuda.device_count() == 2
        with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:2, of 2 simulated"):
            torch.ones(1, device="cuda:2")
        uuids = [torch.cuda.get_device_properties(index).uuid for index in (0, 1)]
    message = r"CUDA_VISIBLE_DEVICES='2,0' names none of the 1 simulated GPUs: unset it, or name"
    with pytest.raises(UsageError, match=message):
        simulate("24GiB").__enter__()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{str(uuids[1])[:8]}")
    with simulate("24GiB", count=4):
        assert torch.cuda.device_count() == 1


def test_a_profile_goes_on_when_the_program_hides_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> int:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return int(torch.ones(10, device=device).sum())

    with simulate("24GiB", count=2), LineProfiler(work) as profiler:
        assert work() == 10
        assert torch.cuda.device_count() == 0
        profiler.disable()
        assert "monkeypatch.setenv" in str(profiler.display())


def test_a_program_may_show_what_its_environment_hid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with simulate("24GiB", count=3) as machine:
        assert [gpu.index for gpu in machine.known_gpus] == [0]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert torch.cuda.device_count() == 2
        assert torch.ones(1, device="cuda:1").sum().item() == 1
        assert [gpu.index for gpu in machine.known_gpus] == [0, 1]


# Callbacks


@pytest.fixture
def trace(gpus: Any) -> Any:
    registries = {
        name.removesuffix("Callbacks"): registry
        for name, registry in vars(gpu_trace).items()
        if name.endswith("Callbacks")
    }
    mock = Mock()
    before = {name: list(registry.callback_list) for name, registry in registries.items()}
    torch._C._activate_gpu_trace()
    for name, registry in registries.items():
        registry.add_callback(getattr(mock, name))
    yield mock
    for name, registry in registries.items():
        registry.callback_list[:] = before[name]


def calls(trace: Mock) -> list[tuple[Any, ...]]:
    return [(name, *args) for name, args, _ in trace.method_calls]


def test_callbacks_hear_of_events(trace: Mock) -> None:
    side = torch.cuda.Stream(1)
    trace.reset_mock()
    event = torch.cuda.Event()
    assert calls(trace) == []
    event.record(side)
    event.wait()
    event.query()
    event.synchronize()
    handle = event.cuda_event
    del event
    assert calls(trace) == [
        ("EventCreation", handle),
        ("EventRecord", handle, side.cuda_stream),
        ("EventWait", handle, 0),
        ("EventSynchronization", handle),
        ("EventDeletion", handle),
    ]


def test_waiting_for_an_event_that_was_never_recorded_is_no_wait(trace: Mock) -> None:
    event = torch.cuda.Event()
    event.wait()
    assert (calls(trace), event.cuda_event) == ([], 0)


def test_callbacks_hear_of_streams_and_waits(trace: Mock) -> None:
    torch.cuda.Stream()
    assert {name for name, _ in calls(trace)} == {"StreamCreation"}
    assert len({handle for _, handle in calls(trace)}) == 4 * 32
    trace.reset_mock()
    side = torch.cuda.Stream()
    side.synchronize()
    torch.cuda.synchronize()
    values = torch.ones(3, device="cuda")
    trace.reset_mock()
    with torch.cuda.stream(side):
        values[0].item()
    values.cpu()
    torch.cuda.synchronize()
    assert calls(trace) == [
        ("StreamSynchronization", side.cuda_stream),
        ("StreamSynchronization", 0),
        ("DeviceSynchronization",),
    ]


def test_callbacks_hear_of_memory_and_may_take_some_themselves(trace: Mock) -> None:
    taken: list[int] = []

    def take(address: int) -> None:
        if not taken:
            taken.append(address)
            taken.append(torch.cuda.caching_allocator_alloc(512))

    gpu_trace.register_callback_for_memory_allocation(take)
    tensor = torch.empty(10, device="cuda")
    pointer = tensor.data_ptr()
    assert taken[0] == pointer
    tensor.untyped_storage().resize_(5000)
    larger = tensor.data_ptr()
    del tensor
    torch.cuda.caching_allocator_delete(taken[1])
    assert calls(trace) == [
        ("MemoryAllocation", pointer),
        ("MemoryAllocation", taken[1]),
        ("MemoryAllocation", larger),
        ("MemoryDeallocation", pointer),
        ("MemoryDeallocation", larger),
        ("MemoryDeallocation", taken[1]),
    ]


def test_a_callback_that_is_interrupted_leaves_no_memory_behind(trace: Mock) -> None:
    del trace  # the callbacks are on

    def interrupt(_address: int) -> None:
        raise KeyboardInterrupt

    gpu_trace.register_callback_for_memory_allocation(interrupt)
    with pytest.raises(KeyboardInterrupt):
        torch.empty(10, device="cuda")
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("waits", [False, True])
def test_cudas_sanitizer_finds_what_races(gpus: Any, waits: bool) -> None:
    from torch.cuda._sanitizer import CUDASanitizer, CUDASanitizerErrors

    registries = [one for name, one in vars(gpu_trace).items() if name.endswith("Callbacks")]
    before = [list(registry.callback_list) for registry in registries]
    sanitizer = CUDASanitizer()
    sanitizer.enable()
    try:
        tensor = torch.rand(4, 2, device="cuda")
        side = torch.cuda.Stream()
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if waits:
                tensor.mul_(2)
            else:
                with pytest.raises(CUDASanitizerErrors, match="1 errors"):
                    tensor.mul_(2)
    finally:
        sanitizer.disable()
        for registry, callbacks in zip(registries, before, strict=True):
            registry.callback_list[:] = callbacks


def test_nobody_is_told_before_the_trace_is_activated(gpus: Any) -> None:
    mock = Mock()
    gpu_trace.register_callback_for_memory_allocation(mock)
    try:
        torch.ones(1, device="cuda")
        torch.cuda.Event().record()
        mock.assert_not_called()
        torch._C._activate_gpu_trace()
        torch.ones(1, device="cuda")
        mock.assert_called_once()
    finally:
        gpu_trace.MemoryAllocationCallbacks.callback_list.remove(mock)


# Processes


def test_a_simulation_that_nobody_leaves_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import pytorch_memlab\npytorch_memlab.simulate('24GiB').__enter__()\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import gc, torch; gc.collect(); print(torch.ones(1).cuda().device)",
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("cuda:0\n", "", 0)


# Backends


def test_kernels_of_attention_are_those_that_the_gpu_has() -> None:
    options = [False, False]  # Is it causal? Do heads share their keys?

    answers = [
        torch.backends.cuda.can_use_flash_attention,
        torch.backends.cuda.can_use_efficient_attention,
        torch.backends.cuda.can_use_cudnn_attention,
    ]

    def usable(gpu: str, dtype: torch.dtype) -> list[bool]:
        with simulate(gpu):
            query = torch.ones(1, 2, 8, 8, device="cuda", dtype=dtype)
            call = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, *options)
            return [answer(call) for answer in answers]

    assert usable("a100-80gb", torch.float16) == [True, True, True]
    assert usable("a100-80gb", torch.float32) == [False, True, False]
    assert usable("t4", torch.float16) == [False, True, False]
    with simulate("t4"):
        query = torch.ones(1, 2, 8, 8)
        call = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, *options)
        assert not torch.backends.cuda.can_use_efficient_attention(call)


def test_flash_attention_is_there_while_a_gpu_is_simulated() -> None:
    has_flash = torch.backends.cuda.is_flash_attention_available()
    with simulate("t4"):
        assert torch.backends.cuda.is_flash_attention_available()
    assert torch.backends.cuda.is_flash_attention_available() is has_flash


def test_each_gpu_has_its_limit_of_fft_plans(gpus: Any) -> None:
    plans = torch.backends.cuda.cufft_plan_cache
    plans[1].max_size = 10
    assert (plans[0].max_size, plans[1].max_size, plans.max_size) == (4096, 10, 4096)
    with pytest.raises(RuntimeError, match="but got device with index 7"):
        plans[7].max_size  # noqa: B018


def test_legacy_sparse_types_are_to_ask_for(gpus: Any) -> None:
    sparse = torch.eye(3, device="cuda").to_sparse()
    assert isinstance(sparse, torch.cuda.sparse.FloatTensor)
    assert not isinstance(sparse, torch.cuda.sparse.DoubleTensor)
    assert not isinstance(sparse.cpu(), torch.cuda.sparse.FloatTensor)
    with pytest.raises(UnsupportedCUDACallError, match=r"torch\.cuda\.sparse\.FloatTensor is not"):
        torch.cuda.sparse.FloatTensor()
