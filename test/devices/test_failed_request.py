"""The state of a real GPU when a request fails; a simulated one stands in for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.blind import blind

from pytorch_memlab import explain_oom, simulate
from pytorch_memlab.devices.failed_request import failed_on_gpu, observe

MIB = 2**20


def take(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture
def gpu() -> Iterator[Any]:
    with blind(), simulate("64MiB") as machine:
        yield machine.gpus[0]


def failure() -> torch.OutOfMemoryError:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(50)
    return caught.value


def test_the_state_after_an_error_is_read_from_torch(gpu):
    kept = take(20)
    cached = take(12)
    mark = take(5)
    del cached
    error = failure()
    found = failed_on_gpu(error)
    true = gpu.failure.request
    # PyTorch's message has the segment alone; nvidia-ml-py would tell context and processes.
    assert found == replace(
        true,
        requested=true.segment,
        context=None,
        others=None,
        free_blocks=found.free_blocks,
    )
    assert sorted(found.free_blocks) == sorted(true.free_blocks)
    del kept, mark


def test_an_observer_notes_the_state_at_the_moment_of_the_error(gpu):
    kept = take(20)
    observe()
    observe()
    assert len(gpu.out_of_memory_observers) == 1
    error = failure()
    del kept
    found = failed_on_gpu(error)
    assert sum(found.blocks.values()) == 20 * MIB
    # Each error has its own; the next question is about now.
    assert sum(failed_on_gpu(error).blocks.values()) == 0


def test_no_observer_before_the_gpu_is_in_use(gpu, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        observe()
    assert gpu.out_of_memory_observers == []


def test_an_error_of_the_program_is_none_of_a_gpu():
    assert failed_on_gpu(torch.OutOfMemoryError("CUDA out of memory.")) is None
    assert failed_on_gpu(RuntimeError("GPU 0 has a total capacity of nothing")) is None


def test_tensors_are_named_where_no_line_is_known(gpu, monkeypatch):
    monkeypatch.setattr(
        "pytorch_memlab.reporter.oom_groups.address_of",
        lambda _tensor, storage: gpu_addresses[storage._cdata],
    )
    kept = take(40)
    gpu_addresses = {kept.untyped_storage()._cdata: next(gpu.allocator.blocks_in_use())[0]}
    with pytest.raises(torch.OutOfMemoryError), explain_oom() as block:
        take(30)
    assert block.report.splitlines()[2:] == [
        "  asked for a segment of 30.0 MiB",
        "  in use 40.0 MiB, cached 0 B (largest block 0 B), free 24.0 MiB",
        "  of 64.0 MiB; CUDA context and other processes not known",
        "  held at the error by 40.0 MiB other tensors",
        "    40.0 MiB  kept  41943040 uint8",
        "no single cause stands out",
    ]
