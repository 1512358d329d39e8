"""Frees of the caching allocator that wait for streams."""

from support.spied_allocator import BASE, MB, allocator, current


def test_a_free_waits_for_the_streams_that_were_recorded():
    made = allocator()
    address = made.malloc(4 * MB)
    made.record_stream(address, 7)
    made.record_stream(address, 8)
    made.work.sleep(7)
    made.free(address)
    assert current(made, "allocated_bytes") == current(made, "allocation") == 0
    assert current(made, "active_bytes") == 4 * MB
    assert current(made, "requested_bytes") == 4 * MB
    assert made.malloc(4 * MB) == address + 4 * MB
    made.work.finish(8)
    assert made.malloc(4 * MB) == address + 8 * MB
    made.work.finish(7)
    assert current(made, "active") == 3
    assert made.malloc(4 * MB) == address
    assert current(made, "active") == 3


def test_work_that_is_not_held_is_done_but_noticed_at_the_next_allocation():
    made = allocator()
    address = made.malloc(4 * MB)
    made.record_stream(address, 7)
    made.free(address)
    assert current(made, "active_bytes") == 4 * MB
    made.process_events()
    assert current(made, "active_bytes") == 0
    assert made.malloc(4 * MB) == address


def test_the_own_stream_needs_no_waiting():
    made = allocator()
    address = made.malloc(4 * MB, stream=3)
    made.record_stream(address, 3)
    made.free(address)
    assert current(made, "active_bytes") == 0


def test_a_block_that_waits_is_not_joined():
    made = allocator()
    a, b = made.malloc(4 * MB), made.malloc(4 * MB)
    made.record_stream(a, 1)
    made.work.sleep(1)
    made.free(a)
    made.free(b)
    assert [block["size"] for block in made.snapshot()[0]["blocks"]] == [4 * MB, 16 * MB]


def test_neighbours_that_waited_are_joined():
    made = allocator()
    for address in [made.malloc(4 * MB) for _ in range(3)]:
        made.record_stream(address, 1)
        made.record_stream(address, 2)
        made.free(address)
    made.process_events()
    assert [block["size"] for block in made.snapshot()[0]["blocks"]] == [20 * MB]
    assert made.malloc(20 * MB) == BASE


def test_empty_cache_waits_for_all_streams():
    made = allocator()
    address = made.malloc(4 * MB)
    made.record_stream(address, 1)
    made.work.sleep(1)
    made.free(address)
    made.empty_cache()
    stats = made.memory_stats()
    assert (stats["num_sync_all_streams"], stats["num_device_free"]) == (1, 1)
    assert current(made, "reserved_bytes") == current(made, "active_bytes") == 0
    assert made.snapshot() == []


def test_synchronize_without_a_stream_ends_all_holds():
    made = allocator()
    for _ in range(2):
        address = made.malloc(4 * MB)
        made.record_stream(address, 1)
        made.work.sleep(1)
        made.free(address)
        made.work.finish()
        assert made.malloc(4 * MB) == address
        made.free(address)
