"""The real CUDA device's code, on a simulated GPU that it takes for a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.blind import blind

from pytorch_memlab import LineProfiler, PeakScope, simulate
from pytorch_memlab.devices import find_devices, get_device, program_view
from pytorch_memlab.devices.cuda import CudaDevice

KIB = 1024


@pytest.fixture
def taken_for_real() -> Iterator[Any]:
    with blind(), simulate("24GiB", count=2) as machine:
        yield machine
        # What a tracker still answers for ends with the program's own reset.
        for index in range(2):
            torch.cuda.reset_peak_memory_stats(index)
        assert program_view._views == {}


def block(kib: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8, device=device)


def test_devices_are_those_of_torch(taken_for_real: Any) -> None:
    assert [device.name for device in find_devices()] == ["cuda:0", "cuda:1"]
    device = get_device("cuda:1")
    assert isinstance(device, CudaDevice)
    torch.cuda.init()
    assert device.info.description == "Simulated GPU (24.00 GiB)"
    assert not device.info.simulated
    assert device.capacity() == 24 * 2**30


def test_counters_are_read_once_per_sample_and_reset_only_after_a_change(
    taken_for_real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        kept = block(4)
        size = kept.numel()
        size += 1
        del kept

    calls: list[str] = []
    block(1)
    with monkeypatch.context() as patch:
        for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"):
            original = getattr(torch._C, name)
            patch.setattr(
                torch._C, name, lambda device, n=name, f=original: (calls.append(n), f(device))[1]
            )
        with LineProfiler(work, target_gpu=0) as prof:
            work()
        counted = list(calls)
        torch.cuda.reset_peak_memory_stats()
    rows = prof.display(columns=["active_bytes.all.peak", "delta"]).report.tables[0].rows
    assert list(rows.values()) == [
        (0, 0), (4 * KIB, 4 * KIB), (4 * KIB, 0), (4 * KIB, 0), (4 * KIB, -4 * KIB)
    ]  # fmt: skip
    # To own the peaks, to open the def row, five line ends, and to give the peaks back.
    assert counted.count("_cuda_memoryStats") == 8
    # The block made before, the one made, the one freed.
    assert counted.count("_cuda_resetPeakMemoryStats") == 3


def test_the_programs_peak_stays_true_after_the_last_window(taken_for_real: Any) -> None:
    before = torch._C._cuda_memoryStats
    block(64)
    with PeakScope() as scope:
        block(8)
    assert scope.peak == 8 * KIB
    # The allocator's own peak was reset, and nothing can raise it again: so we answer.
    assert torch._C._cuda_memoryStats is not before
    assert torch.cuda.max_memory_allocated() == 64 * KIB
    kept = block(16)
    assert torch.cuda.max_memory_allocated() == 64 * KIB
    with PeakScope() as scope:
        block(8)
    assert scope.peak == 24 * KIB
    assert torch.cuda.max_memory_allocated() == 64 * KIB
    torch.cuda.reset_peak_memory_stats()
    assert torch._C._cuda_memoryStats is before
    assert torch.cuda.max_memory_allocated() == 16 * KIB
    block(32)
    assert torch.cuda.max_memory_allocated() == 48 * KIB
    del kept


def test_what_another_tool_puts_over_the_counters_changes_no_measurement(
    taken_for_real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(64)
    with PeakScope() as scope:
        replaced, reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
        seen = []

        def watching(device: int) -> Any:
            seen.append(replaced(device)["active_bytes"]["all"]["peak"])
            return {}

        with monkeypatch.context() as patch:
            patch.setattr(torch._C, "_cuda_memoryStats", watching)
            patch.setattr(torch._C, "_cuda_resetPeakMemoryStats", lambda device: None)
            block(8)
            assert scope.peak == 8 * KIB
            block(16)
            scope.reset()
            block(4)
            assert scope.peak == 4 * KIB
        assert seen == []
        # What the program reads is what it would read alone.
        assert torch.cuda.max_memory_allocated() == 64 * KIB
        assert torch._C._cuda_memoryStats is replaced
        assert torch._C._cuda_resetPeakMemoryStats is reset


def test_a_reset_of_the_program_takes_no_peak_of_another_thread(
    taken_for_real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset, waiting = torch._C._cuda_resetPeakMemoryStats, []

    def reset_beside_a_thread(device: int) -> None:
        reset(device)
        if waiting:
            block(waiting.pop())

    block(64)
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_resetPeakMemoryStats", reset_beside_a_thread)
        with PeakScope() as scope:
            block(8)
            waiting.append(32)
            torch.cuda.reset_peak_memory_stats()
            assert (scope.peak, torch.cuda.max_memory_allocated()) == (32 * KIB, 32 * KIB)
        torch.cuda.reset_peak_memory_stats()


def test_devices_count_from_their_first_use(taken_for_real: Any) -> None:
    def work() -> None:
        zero = block(1, "cuda:0")
        one = block(2, "cuda:1")
        del zero, one

    with LineProfiler(work) as prof:
        work()
    shown = {
        table.device.name: [values[0] for values in table.rows.values()]
        for table in prof.display(columns="active_bytes.all.peak").report.tables
    }
    assert shown == {"cuda:0": [0, KIB, KIB, KIB], "cuda:1": [0, 0, 2 * KIB, 2 * KIB]}


def test_a_gpu_that_the_program_does_not_use_is_not_measured(taken_for_real: Any) -> None:
    def work() -> None:
        kept = block(1, "cuda:0")
        del kept

    with LineProfiler(work) as prof:
        work()
    report = prof.display(columns="active_bytes.all.peak").report
    shown = [
        (table.device.name, [values[0] for values in table.rows.values()])
        for table in report.tables
    ]
    assert (shown, report.notes) == ([("cuda:0", [0, KIB, KIB])], ())
    assert [one.device.name for one in prof.recorded().devices] == ["cuda:0"]


def test_without_the_private_names_the_public_ones_answer(
    taken_for_real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
    block(64)
    with monkeypatch.context() as patch:
        patch.delattr(torch._C, "_cuda_memoryStats")
        patch.delattr(torch._C, "_cuda_resetPeakMemoryStats")
        for module in (torch.cuda, torch.cuda.memory):
            patch.setattr(module, "memory_stats_as_nested_dict", lambda device=None: stats(0))
            patch.setattr(module, "reset_peak_memory_stats", lambda device=None: reset(0))
        with PeakScope() as scope:
            block(8)
            assert torch.cuda.max_memory_allocated() == 64 * KIB
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == 0
        assert scope.peak == 8 * KIB
        torch.cuda.reset_peak_memory_stats()


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_getDeviceCount"), reason="a build without CUDA")
def test_torch_still_has_the_names_that_are_used() -> None:
    for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_hasPrimaryContext"):
        assert hasattr(torch._C, name)


def test_what_the_program_cannot_have_is_what_the_driver_counts_less_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with simulate("24GiB", context="500MiB", others="2GiB"):
        device = CudaDevice(0)
        assert device.taken() is None  # asking would initialise CUDA
        torch.cuda.init()
        before = device.taken()
        kept = block(3 * KIB)
        block(64 * KIB)  # stays in the cache
        free, total = torch.cuda.mem_get_info(0)
        reserved = torch.cuda.memory_reserved(0)
        assert (before, device.taken()) == (2548 * 2**20, 2548 * 2**20)
        assert reserved == total - free - device.taken() == 84 * 2**20
        # The driver is asked before the counters: a thread may take memory in between.
        monkeypatch.setattr(
            torch.cuda, "mem_get_info", lambda index: (total - reserved // 2, total)
        )
        assert device.taken() == 0
    assert kept.nbytes == 3 * 2**20
