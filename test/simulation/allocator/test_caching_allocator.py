import pytest

from pytorch_memlab.errors import UsageError
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator, OutOfMemory
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MB = 2**20
BASE = 0x7000_0000_0000
RESERVED = BASE + 2**43


class SpyDriver(SimulatedDriver):
    """Notes what is asked of it, in MB."""

    def __init__(self, total, context=0):
        super().__init__(total, context)
        self.calls = []
        self.sizes = {}

    def malloc(self, size):
        address = super().malloc(size)
        self.calls.append(("malloc" if address else "malloc fails", size // MB))
        self.sizes[address] = size // MB
        return address

    def free(self, address):
        self.calls.append(("free", self.sizes[address]))
        super().free(address)

    def map(self, address, size):
        mapped = super().map(address, size)
        self.calls.append(("map" if mapped else "map fails", size // MB))
        return mapped

    def unmap(self, address, size):
        self.calls.append(("unmap", size // MB))
        super().unmap(address, size)


def allocator(conf="", total_mb=24 * 1024, **options):
    driver = SpyDriver(total_mb * MB)
    made = CachingAllocator(driver, AllocatorSettings.parse(conf), **options)
    made.driver = driver
    return made


def current(made, group, pool="all"):
    return made.memory_stats()[group][pool]["current"]


def stat(current, peak, allocated, freed):
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def pools(everything, small, large):
    return {"all": stat(*everything), "small_pool": stat(*small), "large_pool": stat(*large)}


NONE = (0, 0, 0, 0)


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


# Frees that wait for streams


def test_a_free_waits_for_the_streams_that_were_recorded():
    made = allocator()
    address = made.malloc(4 * MB)
    made.record_stream(address, 7)
    made.record_stream(address, 8)
    made.hold_stream(7)
    made.free(address)
    assert current(made, "allocated_bytes") == current(made, "allocation") == 0
    assert current(made, "active_bytes") == 4 * MB
    assert current(made, "requested_bytes") == 4 * MB
    assert made.malloc(4 * MB) == address + 4 * MB
    made.synchronize(8)
    assert made.malloc(4 * MB) == address + 8 * MB
    made.synchronize(7)
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
    made.hold_stream(1)
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
    made.hold_stream(1)
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
        made.hold_stream(1)
        made.free(address)
        made.synchronize()
        assert made.malloc(4 * MB) == address
        made.free(address)


# Room


def test_empty_cache_gives_whole_segments_back_large_ones_first():
    made = allocator()
    made.malloc(4 * MB)
    for address in [made.malloc(size) for size in (30 * MB, 5, 22 * MB, 4 * MB)]:
        made.free(address)
    made.driver.calls.clear()
    made.empty_cache()
    assert made.driver.calls == [("free", 22), ("free", 30), ("free", 2)]
    assert current(made, "reserved_bytes") == 20 * MB


def test_room_is_made_by_a_retry_and_only_that_is_counted():
    made = allocator(total_mb=60)
    large, small = made.malloc(40 * MB), made.malloc(5)
    made.free(large)
    made.free(small)
    made.driver.calls.clear()
    made.malloc(50 * MB)
    assert made.driver.calls == [
        ("malloc fails", 50),
        ("free", 40),
        ("free", 2),
        ("malloc", 50),
    ]
    stats = made.memory_stats()
    assert stats["num_alloc_retries"] == stats["num_sync_all_streams"] == 1
    assert stats["num_ooms"] == 0
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (3, 2)


def test_the_pool_is_not_searched_again_after_the_cache_was_emptied():
    made = allocator(total_mb=40)
    made.free(made.malloc(40 * MB))
    made.malloc(12 * MB)
    waiting = made.malloc(12 * MB)
    made.record_stream(waiting, 1)
    made.hold_stream(1)
    made.free(waiting)
    with pytest.raises(OutOfMemory):
        made.malloc(20 * MB)
    assert made.malloc(20 * MB) == waiting


@pytest.mark.parametrize(
    ("cached", "request_mb", "calls"),
    [
        # One that is large enough goes alone, though smaller ones would do together.
        ((64, 30), 40, [("malloc fails", 40), ("free", 64), ("malloc", 40)]),
        # None is: from the largest down, until there is enough.
        ((40, 32, 24), 70, [("malloc fails", 70), ("free", 40), ("free", 32), ("malloc", 70)]),
    ],
)
def test_oversize_segments_are_given_back_first(cached, request_mb, calls):
    made = allocator("max_split_size_mb:20", total_mb=100)
    for address in [made.malloc(size * MB) for size in cached]:
        made.free(address)
    made.driver.calls.clear()
    made.malloc(request_mb * MB)
    assert made.driver.calls == calls
    stats = made.memory_stats()
    assert stats["num_alloc_retries"] == stats["num_sync_all_streams"] == 0


def test_oversize_segments_that_are_not_enough_are_followed_by_a_retry():
    made = allocator("max_split_size_mb:20", total_mb=100)
    blocks = [made.malloc(size * MB) for size in (40, 14)]
    made.malloc(12 * MB)
    for block in blocks:
        made.free(block)
    made.driver.calls.clear()
    made.malloc(88 * MB)
    assert made.driver.calls == [
        ("malloc fails", 88),
        ("free", 40),
        ("free", 14),
        ("malloc", 88),
    ]
    assert made.memory_stats()["num_alloc_retries"] == 1


def test_blocks_above_max_split_size_stay_whole():
    made = allocator("max_split_size_mb:20")
    big = made.malloc(64 * MB)
    stats = made.memory_stats()
    assert stats["max_split_size"] == 20 * MB
    assert stats["oversize_allocations"] == stats["oversize_segments"] == stat(1, 1, 1, 0)
    made.free(big)
    assert made.memory_stats()["oversize_allocations"] == stat(0, 1, 1, 1)
    assert made.malloc(19 * MB) != big  # a small request does not get an oversize block
    assert made.malloc(44 * MB) != big  # nor does one that would waste 20 MiB
    assert made.malloc(44 * MB + 1) == big
    assert current(made, "active_bytes") == (20 + 44 + 64) * MB
    made.free(big)
    made.empty_cache()
    assert made.memory_stats()["oversize_segments"] == stat(2, 3, 3, 1)


def test_what_may_be_wasted_can_be_set():
    made = allocator("max_split_size_mb:20,max_non_split_rounding_mb:40")
    big = made.malloc(64 * MB)
    made.free(big)
    assert made.malloc(25 * MB) == big


@pytest.mark.parametrize(
    ("threshold", "freed"),
    [
        (0.7, []),  # 98 MiB, and 94 are held
        (0.65, [24]),  # 91 MiB: what is older than the average is enough
        (0.4, [24, 30, 40]),  # 56 MiB: it is not, and of the rest each is as old as the average
    ],
)
def test_garbage_is_collected_oldest_first(threshold, freed):
    made = allocator(f"garbage_collection_threshold:{threshold}", total_mb=1000)
    made.set_memory_fraction(0.14)
    oldest, reused, late = (made.malloc(size * MB) for size in (24, 30, 40))
    made.free(oldest)
    made.free(reused)
    made.free(made.malloc(30 * MB))
    made.free(late)
    made.driver.calls.clear()
    made.malloc(44 * MB)
    assert made.driver.calls == [*(("free", size) for size in freed), ("malloc", 44)]


def test_what_is_split_is_no_garbage():
    made = allocator("garbage_collection_threshold:0.1", total_mb=100)
    made.set_memory_fraction(0.9)
    made.free(made.malloc(4 * MB))
    made.malloc(2 * MB)
    made.malloc(30 * MB)
    assert made.driver.calls == [("malloc", 20), ("malloc", 30)]


def test_no_garbage_is_collected_without_a_limit():
    made = allocator("garbage_collection_threshold:0.1", total_mb=100)
    made.free(made.malloc(30 * MB))
    made.malloc(40 * MB)
    assert made.driver.calls == [("malloc", 30), ("malloc", 40)]


def test_the_memory_fraction_limits_without_asking_the_card():
    made = allocator(total_mb=100)
    assert made.memory_fraction == 1.0
    made.set_memory_fraction(0.3)
    assert made.memory_fraction == int(0.3 * 100 * MB) / (100 * MB)
    with pytest.raises(OutOfMemory, match=r"is free\. .*30\.00 MiB allowed; Of the allocated"):
        made.malloc(31 * MB)
    assert made.driver.calls == []
    made.malloc(28 * MB)
    made.set_memory_fraction(1)
    made.malloc(31 * MB)
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match=r"invalid fraction:.*\. Please set within \[0, 1\]\."):
            made.set_memory_fraction(bad)


def test_the_settings_can_hold_the_fraction():
    made = allocator("per_process_memory_fraction:0.5", total_mb=100)
    assert made.memory_fraction == 0.5
    assert made.settings.per_process_memory_fraction == 0.5


# Out of memory

ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def test_the_text_is_pytorchs():
    driver = SimulatedDriver(24 * 1024 * MB, context=300 * MB)
    made = CachingAllocator(driver, device=1)
    made.malloc(20 * 2**30)
    made.malloc(3 * MB)
    with pytest.raises(OutOfMemory) as error:
        made.malloc(5 * 2**30 + 1)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 5.00 GiB. GPU 1 has a total capacity of 24.00 GiB "
        "of which 3.69 GiB is free. Including non-PyTorch memory, this process has 20.31 GiB "
        "memory in use. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 17.00 MiB "
        "is reserved by PyTorch but unallocated. " + ADVICE
    )
    stats = made.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)


def test_the_text_names_the_segment_and_the_limit():
    class Unwatched(SimulatedDriver):
        process_memory = None

    made = CachingAllocator(Unwatched(4 * MB))
    made.set_memory_fraction(0.25)
    with pytest.raises(OutOfMemory) as error:
        made.malloc(5)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 4.00 MiB "
        "of which 4.00 MiB is free. 1024.00 KiB allowed; Of the allocated memory 0 bytes is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. " + ADVICE
    )


def test_nobody_allocates_an_exabyte():
    made = allocator()
    with pytest.raises(OutOfMemory) as error:
        made.malloc(2**60)
    assert str(error.value) == "CUDA out of memory. Tried to allocate more than 1EB memory."
    assert made.memory_stats()["num_ooms"] == 0
    with pytest.raises(OutOfMemory, match=r"Tried to allocate 1073741824\.00 GiB"):
        made.malloc(2**60 - 1)


def test_a_request_can_be_refused_before_it_is_tried():
    made = allocator("throw_on_cudamalloc_oom:True", total_mb=100)
    made.free(made.malloc(60 * MB))
    made.driver.calls.clear()
    with pytest.raises(OutOfMemory) as error:
        made.malloc(70 * MB)
    assert str(error.value) == (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 70.00 MiB"
    )
    stats = made.memory_stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"]) == (1, 0)
    assert made.driver.calls == []


def test_what_remains_after_out_of_memory_works():
    made = allocator(total_mb=60)
    kept = made.malloc(40 * MB)
    with pytest.raises(OutOfMemory):
        made.malloc(30 * MB)
    made.free(kept)
    made.malloc(50 * MB)
    assert current(made, "active_bytes") == 50 * MB


# Expandable segments


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
    assert made.malloc(30 * MB) == RESERVED
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
    with pytest.raises(OutOfMemory, match=r"Tried to allocate 12\.00 MiB"):
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
    with pytest.raises(OutOfMemory):
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
    made.hold_stream(4)
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
