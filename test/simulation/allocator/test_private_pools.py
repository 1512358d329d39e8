"""Private pools, of CUDA graphs and of ``torch.cuda.MemPool``: whom they serve, and how long."""

import pytest
from support.spied_allocator import BASE, MB, allocator, current, pools

from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError

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
    with pytest.raises(DeviceOutOfMemoryError) as failure:
        made.malloc(20 * MB)
    assert (
        "Of the allocated memory 50.00 MiB is allocated by PyTorch, with 30.00 MiB allocated in "
        "private pools (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch but unallocated."
    ) in str(failure.value)


def test_a_request_of_a_capture_lets_the_cache_be():
    made = allocator(total_mb=64)
    made.free(made.malloc(30 * MB))
    made.private.begin(GRAPH, {7}.__contains__)
    made.captures = 1
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(36 * MB, stream=7)
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(36 * MB)
    stats = made.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (0, 2)
    made.empty_cache()
    assert current(made, "reserved_bytes") == 30 * MB
    # Of another stream than the captured one, PyTorch 2.13 gives the cache back.
    made.stream_captures = lambda: False
    made.malloc(36 * MB)
    assert made.memory_stats()["num_alloc_retries"] == 1
    assert current(made, "reserved_bytes") == 36 * MB


def test_a_request_of_a_memory_pool_frees_the_cache():
    made = allocator(total_mb=64)
    made.free(made.malloc(30 * MB))
    made.private.begin(GRAPH, {0}.__contains__)
    made.malloc(36 * MB)
    assert made.memory_stats()["num_alloc_retries"] == 1
    assert made.driver.calls == [
        ("malloc", 30),
        ("malloc fails", 36),
        ("free", 30),
        ("malloc", 36),
    ]


def test_the_pool_begun_last_serves_a_stream():
    made = allocator()
    made.private.begin(GRAPH, {1, 2}.__contains__)
    made.private.begin(OTHER, {2}.__contains__)
    for stream in (0, 1, 2):
        made.malloc(512, stream)
    made.private.end(OTHER)
    made.malloc(512, 2)
    made.private.end(GRAPH)
    made.malloc(512, 2)
    assert [(one["stream"], one["segment_pool_id"]) for one in made.segments()] == [
        (0, (0, 0)),
        (1, GRAPH),
        (2, OTHER),
        (2, GRAPH),
        (2, (0, 0)),
    ]


def test_the_uses_of_a_pool_are_counted():
    made = allocator()
    private = made.private
    private.use(GRAPH)
    private.begin(GRAPH, {1}.__contains__)
    with pytest.raises(RuntimeError, match="beginAllocateToPool: already recording to mempool_id"):
        private.begin(GRAPH, {2}.__contains__)
    # As in C++, the use of the pool is counted before the error.
    assert private.use_count(GRAPH) == 3
    private.end(GRAPH)
    with pytest.raises(RuntimeError, match="endAllocatePool: not currently recording to mempool"):
        private.end(GRAPH)
    kept = made.malloc(512, pool_id=GRAPH)
    for count in (2, 1, 0):
        private.release(GRAPH)
        assert private.use_count(GRAPH) == count
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT FAILED"):
        private.release(GRAPH)
    made.empty_cache()
    with pytest.raises(RuntimeError, match="use_count > 0 INTERNAL ASSERT FAILED"):
        private.use(GRAPH)
    made.free(kept)
    made.empty_cache(GRAPH)
    assert made.memory_stats()["num_sync_all_streams"] == 2
    with pytest.raises(RuntimeError, match="no memory pool is"):
        private.use_count(GRAPH)
    private.use(GRAPH)
    assert private.use_count(GRAPH) == 1


def test_a_block_that_another_stream_uses_waits_for_the_end_of_a_capture():
    made = allocator()
    before = made.malloc(3 * MB)
    made.record_stream(before, 5)
    made.private.begin(GRAPH, {7}.__contains__)
    made.captures = 1
    block = made.malloc(3 * MB, 7)
    made.record_stream(block, 8)  # the capture orders its streams by itself
    made.free(block)
    made.free(before)
    assert made.malloc(3 * MB, 7) == block + 3 * MB
    states = [part["state"] for one in made.segments() for part in one["blocks"]]
    assert states == [
        *("active_pending_free", "inactive"),
        *("active_pending_free", "active_allocated", "inactive"),
    ]
    assert current(made, "active") == 3
    assert current(made, "allocation") == 1
    made.private.end(GRAPH)
    made.captures = 0
    made.work.sleep(5)
    made.malloc(512)
    assert current(made, "active") == 3  # the block of the capture is free, the one before waits
    states = [part["state"] for part in made.segments()[1]["blocks"]]
    assert states == ["inactive", "active_allocated", "inactive"]
    made.work.finish(5)
    made.malloc(512)
    assert current(made, "active") == 3


def test_a_pool_serves_others_when_memory_runs_out():
    made = allocator(total_mb=64)
    made.private.served_on_oom[GRAPH] = None
    made.free(made.malloc(40 * MB, pool_id=GRAPH))
    made.malloc(24 * MB)
    borrowed = made.malloc(8 * MB)
    assert made.memory_stats()["num_alloc_retries"] == 0
    assert made.allocated_blocks[borrowed].pool.private.pool_id == GRAPH
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(33 * MB)  # more than what is left of the segment


def test_a_pool_may_leave_its_segments_whole():
    made = allocator()
    made.private.of_id(GRAPH).splits = False
    address = made.malloc(512, pool_id=GRAPH)
    assert made.block_size(address) == 2 * MB
    assert made.malloc(512, pool_id=GRAPH) == address + 2 * MB
    assert current(made, "allocated_bytes") == 4 * MB
    assert current(made, "requested_bytes") == 1024
    assert current(made, "inactive_split") == 0
