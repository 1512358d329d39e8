"""Room that the caching allocator makes before it is out of memory, and the error then."""

import pytest
from support.spied_allocator import MB, allocator, current, stat

from pytorch_memlab.errors import UsageError
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError

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
    made.work.sleep(1)
    made.free(waiting)
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(20 * MB)
    assert made.malloc(20 * MB) == waiting


@pytest.mark.parametrize(
    ("cached", "request_mb", "calls"),
    [
        # One that is large enough goes alone, though smaller ones would do together.
        ((64, 30), 40, [("malloc fails", 40), ("free", 64), ("malloc", 40)]),
        # None is: from the largest down, until there is enough.
        ((40, 32, 24), 70, [("malloc fails", 70), ("free", 40), ("free", 32), ("malloc", 70)]),
        ((40, 30, 24), 70, [("malloc fails", 70), ("free", 40), ("free", 30), ("malloc", 70)]),
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
        (0.5, [24]),  # 70 MiB: it is just enough
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


def test_searches_before_the_limit_make_nothing_older():
    made = allocator("garbage_collection_threshold:0.5", total_mb=1000)
    first, second = made.malloc(24 * MB), made.malloc(30 * MB)
    made.free(first)
    made.malloc(26 * MB)
    made.free(second)
    made.set_memory_fraction(0.14)
    made.driver.calls.clear()
    made.malloc(44 * MB)
    assert made.driver.calls == [("free", 24), ("free", 30), ("malloc", 44)]


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
    with pytest.raises(
        DeviceOutOfMemoryError, match=r"is free\. .*30\.00 MiB allowed; Of the allocated"
    ):
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
    with pytest.raises(DeviceOutOfMemoryError) as error:
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
    with pytest.raises(DeviceOutOfMemoryError) as error:
        made.malloc(5)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 4.00 MiB "
        "of which 4.00 MiB is free. 1024.00 KiB allowed; Of the allocated memory 0 bytes is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. " + ADVICE
    )


def test_nobody_allocates_an_exabyte():
    made = allocator()
    with pytest.raises(DeviceOutOfMemoryError) as error:
        made.malloc(2**60)
    assert str(error.value) == "CUDA out of memory. Tried to allocate more than 1EB memory."
    assert made.memory_stats()["num_ooms"] == 0
    with pytest.raises(DeviceOutOfMemoryError, match=r"Tried to allocate 1073741824\.00 GiB"):
        made.malloc(2**60 - 1)


def test_a_request_can_be_refused_before_it_is_tried():
    made = allocator("throw_on_cudamalloc_oom:True", total_mb=100)
    made.free(made.malloc(60 * MB))
    made.driver.calls.clear()
    with pytest.raises(DeviceOutOfMemoryError) as error:
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
    with pytest.raises(DeviceOutOfMemoryError):
        made.malloc(30 * MB)
    made.free(kept)
    made.malloc(50 * MB)
    assert current(made, "active_bytes") == 50 * MB
