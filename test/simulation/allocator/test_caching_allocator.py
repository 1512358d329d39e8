"""Blocks of the caching allocator: sizes, pools, splits and streams."""

import pytest
from support.spied_allocator import BASE, MB, NONE, allocator, current, pools, stat

from pytorch_memlab.errors import UsageError

# How blocks are made


def test_no_bytes_have_no_address():
    made = allocator()
    assert made.malloc(0) == 0
    made.free(0)
    made.record_stream(0, 1)
    assert not made.ever_allocated
    assert made.driver.calls == []


def test_the_first_small_tensor_takes_a_segment_of_2_mib():
    made = allocator()
    assert made.malloc(10240) == BASE
    assert made.ever_allocated
    assert made.memory_stats() == {
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "max_split_size": -1,
        "num_sync_all_streams": 0,
        "num_device_alloc": 1,
        "num_device_free": 0,
        "num_oom_rejections": 0,
        "allocation": pools((1, 1, 1, 0), (1, 1, 1, 0), NONE),
        "segment": pools((1, 1, 1, 0), (1, 1, 1, 0), NONE),
        "active": pools((1, 1, 1, 0), (1, 1, 1, 0), NONE),
        "inactive_split": pools((1, 1, 1, 0), (1, 1, 1, 0), NONE),
        "allocated_bytes": pools((10240, 10240, 10240, 0), (10240, 10240, 10240, 0), NONE),
        "reserved_bytes": pools((2 * MB, 2 * MB, 2 * MB, 0), (2 * MB, 2 * MB, 2 * MB, 0), NONE),
        "reserved_bytes_by_private_pools": {},
        "active_bytes": pools((10240, 10240, 10240, 0), (10240, 10240, 10240, 0), NONE),
        "inactive_split_bytes": pools(
            (2086912, 2086912, 2086912, 0), (2086912, 2086912, 2086912, 0), NONE
        ),
        "requested_bytes": pools((10240, 10240, 10240, 0), (10240, 10240, 10240, 0), NONE),
        "oversize_allocations": stat(*NONE),
        "oversize_segments": stat(*NONE),
    }


def test_the_statistics_stand_in_torchs_order():
    stats = allocator().memory_stats()
    assert list(stats) == [
        "num_alloc_retries",
        "num_ooms",
        "max_split_size",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "reserved_bytes_by_private_pools",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
        "oversize_allocations",
        "oversize_segments",
    ]
    assert list(stats["active"]) == ["all", "small_pool", "large_pool"]
    assert list(stats["active"]["all"]) == ["current", "peak", "allocated", "freed"]


@pytest.mark.parametrize(
    ("size", "pool", "block", "reserved"),
    [
        (1, "small_pool", 512, 2 * MB),
        (MB, "small_pool", MB, 2 * MB),
        (MB - 1, "small_pool", MB, 2 * MB),
        (MB + 1, "large_pool", MB + 512, 20 * MB),
        (10 * MB - 1, "large_pool", 10 * MB, 10 * MB),
        (11 * MB, "large_pool", 12 * MB, 12 * MB),  # too little is left to split it off
        (11 * MB - 512, "large_pool", 11 * MB - 512, 12 * MB),
        (100 * MB, "large_pool", 100 * MB, 100 * MB),
    ],
)
def test_a_request_becomes_a_block_of_a_pool(size, pool, block, reserved):
    made = allocator()
    made.malloc(size)
    assert current(made, "active_bytes", pool) == current(made, "active_bytes") == block
    assert current(made, "reserved_bytes", pool) == current(made, "reserved_bytes") == reserved
    assert current(made, "requested_bytes", pool) == size


def test_blocks_are_cut_from_the_low_end_and_joined_again():
    made = allocator()
    a, b, c = (made.malloc(4 * MB) for _ in range(3))
    assert (a, b, c) == (BASE, BASE + 4 * MB, BASE + 8 * MB)
    made.free(a)
    made.free(c)
    assert current(made, "inactive_split") == 2
    assert current(made, "inactive_split_bytes") == 16 * MB
    made.free(b)
    assert current(made, "inactive_split") == 0
    assert made.malloc(20 * MB) == BASE
    assert made.driver.calls == [("malloc", 20)]


def test_the_smallest_block_that_fits_is_taken():
    made = allocator()
    wide, _wall, narrow, _end = (made.malloc(size * MB) for size in (6, 2, 3, 9))
    made.free(wide)
    made.free(narrow)
    assert made.malloc(2 * MB) == narrow
    assert made.malloc(4 * MB) == wide


@pytest.mark.parametrize("order_by_address", [False, True])
def test_of_equal_blocks_the_older_segments_is_taken_or_the_lower(order_by_address):
    made = allocator(order_by_address=order_by_address)
    first, older = made.malloc(30 * MB), made.malloc(30 * MB)
    made.free(first)
    made.empty_cache()
    younger = made.malloc(30 * MB)
    assert younger < older
    made.free(older)
    made.free(younger)
    assert made.malloc(30 * MB) == (younger if order_by_address else older)


def test_within_a_segment_the_lowest_of_equal_blocks_is_taken():
    made = allocator()
    blocks = [made.malloc(512) for _ in range(6)]
    for index in (4, 0, 2):
        made.free(blocks[index])
    assert [made.malloc(512) for _ in range(3)] == [blocks[0], blocks[2], blocks[4]]


def test_a_stream_has_its_own_segments_under_expandable_segments_too():
    made = allocator("expandable_segments:True", total_mb=800)
    first = made.malloc(4 * MB, stream=1)
    made.free(first)
    assert made.malloc(4 * MB, stream=2) == first + 900 * MB
    assert made.malloc(4 * MB, stream=1) == first


def test_streams_do_not_share_blocks():
    made = allocator()
    first = made.malloc(4 * MB, stream=1)
    made.free(first)
    assert made.malloc(4 * MB, stream=2) == BASE + 20 * MB
    assert made.malloc(4 * MB, stream=1) == first


def test_a_pointer_that_is_none_is_refused():
    made = allocator()
    address = made.malloc(5)
    made.free(address)
    for call in (made.free, lambda bad: made.record_stream(bad, 1)):
        with pytest.raises(UsageError, match="invalid device pointer: 0x700000000000 is not"):
            call(address)
    with pytest.raises(UsageError, match="size must be 0 or more bytes, not -1"):
        made.malloc(-1)
