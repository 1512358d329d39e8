"""Statistics and snapshots of the caching allocator."""

import pytest
from support.spied_allocator import MB, NONE, allocator, stat

from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError

# Statistics


def test_resetting_the_peaks_leaves_what_is_there():
    made = allocator()
    keep = made.malloc(4 * MB)
    made.free(made.malloc(8 * MB))
    made.reset_peak_stats()
    assert made.memory_stats()["active_bytes"]["large_pool"] == stat(
        4 * MB, 4 * MB, 12 * MB, 8 * MB
    )
    made.free(keep)
    assert made.memory_stats()["active"]["all"] == stat(0, 1, 2, 2)


def test_resetting_what_came_and_went_leaves_the_peaks():
    made = allocator("max_split_size_mb:20", total_mb=100)
    made.malloc(30 * MB)
    made.free(made.malloc(60 * MB))
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(120 * MB)
    made.reset_accumulated_stats()
    stats = made.memory_stats()
    assert stats["allocated_bytes"]["all"] == stat(30 * MB, 90 * MB, 0, 0)
    assert stats["oversize_allocations"] == stats["oversize_segments"] == stat(1, 2, 0, 0)
    assert stats["max_split_size"] == 20 * MB
    assert {key: stats[key] for key in stats if key.startswith("num_")} == {
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": 0,
        "num_device_free": 0,
        "num_oom_rejections": 0,
    }
    made.malloc(MB)
    assert made.memory_stats()["allocation"]["small_pool"] == stat(1, 1, 1, 0)


def test_peaks_can_be_put_back():
    made = allocator("max_split_size_mb:20")
    made.free(made.malloc(64 * MB))
    before = made.memory_stats()
    made.reset_peak_stats()
    assert made.memory_stats() != before
    made.restore_peaks(before)
    assert made.memory_stats() == before
    made.malloc(200 * MB)
    now = made.memory_stats()
    made.restore_peaks(before)
    assert made.memory_stats() == now  # never below what is there
    made.restore_peaks({"active_bytes": {"all": {"peak": 300 * MB}}})
    assert made.memory_stats()["active_bytes"]["all"]["peak"] == 300 * MB
    assert made.memory_stats()["active_bytes"]["large_pool"]["peak"] == 200 * MB


def test_the_peak_of_both_pools_is_of_one_moment():
    made = allocator()
    made.free(made.malloc(MB))
    made.malloc(4 * MB)
    stats = made.memory_stats()["active_bytes"]
    peaks = {pool: stats[pool]["peak"] for pool in stats}
    assert peaks == {"all": 4 * MB, "small_pool": MB, "large_pool": 4 * MB}


def test_a_statistic_read_earlier_does_not_change():
    made = allocator()
    before = made.memory_stats()
    made.malloc(5)
    assert before["active"]["all"] == stat(*NONE)


# Snapshot


def test_a_snapshot_has_torchs_shape():
    made = allocator(device=1)
    a = made.malloc(1000, stream=3)
    b = made.malloc(5, stream=3)
    c = made.malloc(600, stream=3)
    made.record_stream(b, 4)
    made.work.sleep(4)
    made.free(b)
    made.free(c)

    def block(address, size, requested, state):
        return {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": state,
            "frames": [],
        }

    assert made.snapshot() == [
        {
            "device": 1,
            "address": a,
            "total_size": 2 * MB,
            "allocated_size": 1024,
            "active_size": 1536,
            "requested_size": 1005,
            "stream": 3,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                block(a, 1024, 1000, "active_allocated"),
                block(b, 512, 5, "active_pending_free"),
                # A free block keeps the size of its last request, as in PyTorch.
                block(c, 2 * MB - 1536, 600, "inactive"),
            ],
        }
    ]


def test_segments_stand_by_address():
    made = allocator()
    made.malloc(4 * MB)
    made.malloc(5, stream=2)
    made.malloc(12 * MB)
    assert [(one["segment_type"], one["total_size"] // MB) for one in made.snapshot()] == [
        ("large", 20),
        ("small", 2),
    ]
