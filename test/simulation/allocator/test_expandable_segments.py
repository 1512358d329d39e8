"""Expandable segments of the caching allocator, page by page."""

import pytest
from support.spied_allocator import MB, NONE, RESERVED, allocator, current, stat

from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError


def test_an_expandable_segment_grows_page_by_page():
    made = allocator("expandable_segments:True", total_mb=800)
    a = made.malloc(12 * MB)
    b = made.malloc(12 * MB)
    assert (a, b) == (RESERVED, RESERVED + 12 * MB)
    assert made.driver.calls == [("map", 20), ("map", 20)]
    stats = made.memory_stats()
    assert (stats["num_device_alloc"], stats["segment"]["all"]) == (2, stat(*NONE))
    assert current(made, "reserved_bytes", "large_pool") == 40 * MB
    assert current(made, "inactive_split") == current(made, "inactive_split_bytes") == 0
    # 900 MiB of addresses follow: an eighth more than the card has.
    small = made.malloc(5)
    assert small == RESERVED + 900 * MB
    assert made.driver.calls[2:] == [("map", 2)]


def test_expandable_blocks_are_split_from_512_bytes_on():
    made = allocator("expandable_segments:True")
    a = made.malloc(20 * MB - 1024)
    b = made.malloc(MB + 512)
    assert b == a + 20 * MB - 1024
    assert made.driver.calls == [("map", 20), ("map", 20)]
    assert current(made, "active_bytes") == 21 * MB - 512


def test_free_pages_are_given_back_and_filled_first():
    made = allocator("expandable_segments:True", total_mb=800)
    a, b, c = (made.malloc(40 * MB) for _ in range(3))
    made.free(b)
    made.driver.calls.clear()
    made.empty_cache()
    assert made.driver.calls == [("unmap", 40)]
    assert [(one["address"], one["total_size"]) for one in made.snapshot()] == [
        (a, 40 * MB),
        (c, 40 * MB),
    ]
    assert made.malloc(30 * MB) == b
    assert made.malloc(50 * MB) == c + 40 * MB
    assert made.driver.calls[1:] == [("map", 40), ("map", 60)]


def test_only_whole_pages_are_given_back():
    made = allocator("expandable_segments:True", total_mb=800)
    blocks = [made.malloc(size * MB) for size in (30, 40, 30)]
    made.free(blocks[1])
    made.driver.calls.clear()
    made.empty_cache()
    assert made.driver.calls == [("unmap", 20)]
    (first, second) = made.snapshot()
    assert [block["size"] // MB for block in first["blocks"]] == [30, 10]
    assert [block["size"] // MB for block in second["blocks"]] == [10, 30]
    assert first["is_expandable"]
    assert current(made, "reserved_bytes") == 80 * MB


def test_an_empty_expandable_segment_goes_and_a_new_one_comes():
    made = allocator("expandable_segments:True", total_mb=800)
    made.free(made.malloc(30 * MB))
    made.empty_cache()
    assert made.driver.free_memory() == 800 * MB
    assert made.snapshot() == []
    assert made.malloc(30 * MB, stream=1) == RESERVED
    assert made.memory_stats()["num_device_free"] == 1


def test_the_block_that_can_grow_counts_as_what_it_can_become():
    made = allocator("expandable_segments:True", total_mb=800)
    first, wall, _last = (made.malloc(size * MB) for size in (8, 6, 2))
    made.free(first)
    assert wall == first + 8 * MB
    # 4 MiB are left at the end, which can grow; the hole of 8 MiB cannot and is taken.
    assert made.malloc(3 * MB) == first


def test_an_expandable_segment_is_out_of_memory_page_by_page():
    made = allocator("expandable_segments:True", total_mb=50)
    made.malloc(30 * MB)
    made.driver.calls.clear()
    with pytest.raises(DeviceOutOfMemoryError, match=r"Tried to allocate 12\.00 MiB"):
        made.malloc(10 * MB + 512)
    assert made.driver.calls == [("map fails", 20), ("map fails", 20)]
    assert made.malloc(10 * MB) == RESERVED + 30 * MB
    stats = made.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)


def test_free_pages_of_another_stream_make_room():
    made = allocator("expandable_segments:True", total_mb=50)
    made.free(made.malloc(30 * MB, stream=1))
    made.driver.calls.clear()
    assert made.malloc(30 * MB, stream=2) == RESERVED + 60 * MB
    assert made.driver.calls == [("map fails", 40), ("unmap", 40), ("map", 40)]


def test_settings_that_name_the_page_size():
    made = allocator("expandable_segments:True,large_segment_size_mb:32", total_mb=800)
    made.malloc(2 * MB)
    assert made.driver.calls == [("map", 32)]
