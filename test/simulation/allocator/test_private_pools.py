"""Private pools, of CUDA graphs and of ``torch.cuda.MemPool``: whom they serve, and how long."""

import pytest
from support.spied_allocator import BASE, MB, allocator, current, pools

from pytorch_memlab.simulation.allocator.out_of_memory import OutOfMemory

GRAPH = (0, 1)
OTHER = (3, 0)


def test_a_free_block_serves_its_own_pool_only():
    made = allocator()
    freed = made.malloc(4 * MB, pool_id=GRAPH)
    made.free(freed)
    assert made.malloc(4 * MB) == BASE + 20 * MB
    assert made.malloc(4 * MB, pool_id=OTHER) == BASE + 40 * MB
    assert made.malloc(4 * MB, pool_id=GRAPH) == freed
    assert made.malloc(512, pool_id=GRAPH) == BASE + 60 * MB
    assert made.driver.calls == [("malloc", 20)] * 3 + [("malloc", 2)]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_pool_keeps_its_memory_until_nothing_uses_it(conf):
    made = allocator(conf)
    for size in (MB, 4 * MB):
        made.free(made.malloc(size, pool_id=GRAPH))
        made.free(made.malloc(size))
    large = current(made, "reserved_bytes", "large_pool") // 2
    made.empty_cache()
    assert current(made, "reserved_bytes") == 2 * MB + large
    made.end_private_pool(GRAPH)
    assert current(made, "reserved_bytes") == 2 * MB + large
    made.driver.calls.clear()
    made.empty_cache()
    # The small blocks of a private pool go first, the large ones of the default pool.
    name = "unmap" if conf else "free"
    assert made.driver.calls == [(name, 2), (name, large // MB)]
    assert current(made, "reserved_bytes") == 0


def test_a_pool_that_ends_is_emptied_by_itself():
    made = allocator()
    for pool_id in (None, GRAPH, OTHER):
        made.free(made.malloc(512, pool_id=pool_id))
    made.empty_cache(GRAPH)
    assert current(made, "reserved_bytes") == 6 * MB
    made.end_private_pool(GRAPH)
    made.end_private_pool(OTHER)
    made.empty_cache(GRAPH)
    assert [one["segment_pool_id"] for one in made.segments()] == [(0, 0), OTHER]


def test_the_counters_and_the_snapshot_tell_the_pools():
    made = allocator()
    made.malloc(3 * MB)
    made.free(made.malloc(3 * MB, pool_id=GRAPH))
    made.malloc(512, pool_id=GRAPH)
    assert made.memory_stats()["reserved_bytes_by_private_pools"] == {
        "0_1": pools(
            (22 * MB, 22 * MB, 22 * MB, 0),
            (2 * MB, 2 * MB, 2 * MB, 0),
            (20 * MB, 20 * MB, 20 * MB, 0),
        )
    }
    assert current(made, "reserved_bytes") == 42 * MB
    assert [(one["segment_pool_id"], one["segment_type"]) for one in made.segments()] == [
        ((0, 0), "large"),
        (GRAPH, "large"),
        (GRAPH, "small"),
    ]
    made.end_private_pool(GRAPH)
    made.empty_cache()
    made.reset_peak_stats()
    found = made.memory_stats()["reserved_bytes_by_private_pools"]["0_1"]
    assert found == pools(
        (2 * MB, 2 * MB, 22 * MB, 20 * MB), (2 * MB, 2 * MB, 2 * MB, 0), (0, 0, 20 * MB, 20 * MB)
    )


def test_the_error_tells_what_private_pools_keep():
    made = allocator(total_mb=64)
    made.free(made.malloc(30 * MB, pool_id=GRAPH))
    made.malloc(20 * MB)
    with pytest.raises(OutOfMemory) as failure:
        made.malloc(20 * MB)
    assert (
        "Of the allocated memory 20.00 MiB is allocated by PyTorch, with 30.00 MiB allocated in "
        "private pools (e.g., CUDA Graphs), and 30.00 MiB is reserved by PyTorch but unallocated."
    ) in str(failure.value)


def test_a_request_of_a_private_pool_lets_the_cache_be():
    made = allocator(total_mb=64)
    made.free(made.malloc(30 * MB))
    made.free(made.malloc(20 * MB, pool_id=OTHER))
    with pytest.raises(OutOfMemory):
        made.malloc(24 * MB, pool_id=GRAPH)
    assert made.memory_stats()["num_alloc_retries"] == 1
    assert current(made, "reserved_bytes") == 50 * MB
    made.end_private_pool(OTHER)
    made.malloc(24 * MB, pool_id=GRAPH)
    assert current(made, "reserved_bytes") == 54 * MB
    made.malloc(512)
    assert current(made, "reserved_bytes") == 56 * MB
    # The cache of the default pool makes room for its own requests.
    made.malloc(36 * MB)
    assert current(made, "reserved_bytes") == 62 * MB
