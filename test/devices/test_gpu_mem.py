"""``gpu_mem_get`` and friends, without a GPU and on simulated ones."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnknownDeviceError, UsageError
from pytorch_memlab.gpu_mem import (
    GPUMemory,
    b2mb,
    gpu_mem_allocate_mbs,
    gpu_mem_get,
    gpu_mem_get_all,
    gpu_mem_get_free,
    gpu_mem_get_free_no_cache,
    gpu_mem_get_used,
    gpu_mem_get_used_fast,
    gpu_mem_get_used_no_cache,
    gpu_mem_leave_free_mbs,
    gpu_with_max_free_mem,
    preload_pytorch,
)

TOTAL = 24 * 1024
MB = 2**20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_zero():
    assert gpu_mem_get() == gpu_mem_get(0) == gpu_mem_get(99) == GPUMemory(0, 0, 0)
    assert gpu_mem_get_all() == []
    assert gpu_mem_get_free() == gpu_mem_get_free_no_cache() == 0
    assert gpu_mem_get_used() == gpu_mem_get_used_no_cache() == 0
    assert gpu_mem_get_used_fast(None) == 0
    assert gpu_with_max_free_mem() == (None, 0)
    preload_pytorch()
    assert not torch.cuda.is_initialized()
    with pytest.raises(UsageError, match="no GPU to take memory of"):
        gpu_mem_allocate_mbs(1)


def test_the_fields_are_named_in_this_order():
    assert GPUMemory._fields == ("total", "free", "used")


@pytest.mark.parametrize(
    ("nbytes", "mbs"), [(0, 0), (MB - 1, 0), (MB, 1), (2.5 * MB, 2), (-MB - 1, -1)]
)
def test_bytes_are_rounded_towards_zero(nbytes, mbs):
    assert b2mb(nbytes) == mbs
    assert type(b2mb(nbytes)) is int


def test_used_and_free_are_the_whole_cards():
    with simulate("24GiB", count=2):
        preload_pytorch()
        torch.cuda.empty_cache()
        before = gpu_mem_get()
        assert before.total == TOTAL
        assert before.free + before.used == TOTAL
        block = torch.empty(300 * MB, dtype=torch.uint8, device="cuda")
        assert gpu_mem_get_used() == before.used + 300
        assert gpu_mem_get_free() == before.free - 300
        assert gpu_mem_get_used_fast(0) == before.used + 300
        assert gpu_mem_get(1).used < 300
        assert [memory.total for memory in gpu_mem_get_all()] == [TOTAL, TOTAL]
        del block
        assert gpu_mem_get_used() == before.used + 300  # in the allocator's cache
        assert gpu_mem_get_used_no_cache() == before.used
        assert gpu_mem_get_free_no_cache() == before.free
        assert gpu_mem_get(2) == gpu_mem_get(-1) == GPUMemory(0, 0, 0)


@pytest.mark.parametrize(
    "bad", ["x", "cuda:7", "cpu", 1.0, -1, 2, True, object(), torch.device("cpu")]
)
def test_a_wrong_id_is_no_gpu(bad):
    assert gpu_mem_get(bad) == GPUMemory(0, 0, 0)
    with simulate("24GiB", count=2):
        assert gpu_mem_get(bad) == GPUMemory(0, 0, 0)


def test_a_gpu_has_more_names_than_its_index():
    with simulate("24GiB", count=2):
        block = torch.empty(300 * MB, dtype=torch.uint8, device="cuda:1")
        of_one = gpu_mem_get(1)
        assert of_one.used >= 300 > gpu_mem_get(0).used
        for name in ("1", "cuda:1", torch.device("cuda:1"), torch.device("cuda", 1)):
            assert gpu_mem_get(name) == of_one
        del block
        with pytest.raises(UnknownDeviceError, match="no device 7 here"):
            preload_pytorch(7)


def test_amounts_are_numbers_of_mbs():
    with simulate("1GiB"):
        for call in (gpu_mem_allocate_mbs, gpu_mem_leave_free_mbs):
            for amount in (-1, "5", None, True):
                with pytest.raises(UsageError, match="takes a number of MB"):
                    call(amount)
        assert gpu_mem_allocate_mbs(0.5).nbytes == MB // 2


def test_the_current_device_is_asked_and_the_first_of_the_freest_found():
    with simulate("24GiB", count=3):
        kept = torch.empty(100 * MB, dtype=torch.uint8, device="cuda:0")
        torch.cuda.set_device(1)
        unused = gpu_mem_get_used()
        assert gpu_mem_get(0).used >= unused + 100
        assert gpu_with_max_free_mem() == (1, gpu_mem_get(1).free)
        del kept


def test_memory_can_be_taken_until_so_much_is_left():
    with simulate("1GiB"):
        preload_pytorch()
        hog = gpu_mem_leave_free_mbs(128)
        assert 126 <= gpu_mem_get_free() <= 128
        assert gpu_mem_allocate_mbs(256) is None
        with pytest.raises(torch.OutOfMemoryError):
            gpu_mem_allocate_mbs(256, fatal=True)
        assert gpu_mem_leave_free_mbs(128) is None
        assert hog.nbytes >= (1024 - 132) * MB
        small = gpu_mem_allocate_mbs(64)
        assert small.nbytes == 64 * MB


def test_a_handle_is_asked_of_nvml(monkeypatch):
    asked = []

    def info(handle):
        asked.append(handle)
        return types.SimpleNamespace(used=5 * MB + 1)

    handle = object()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UsageError, match="pip install nvidia-ml-py"):
        gpu_mem_get_used_fast(handle)
    fake = types.SimpleNamespace(nvmlDeviceGetMemoryInfo=info)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert gpu_mem_get_used_fast(handle) == 5
    assert asked == [handle]
